"""What an engine yields for each running job, seen once for all who ask: an observer of the puller, and a look at the engine.

Also how much of the engine's time each attempt took: a moment that n slots share counts 1/n for each of them, so that all
attempts together took exactly the time in which the engine had anything to do.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from broker.job import Lease
from workers.engine import Delta, Engine, EngineCall, EngineLimits, EngineLoad, Final


@dataclass(slots=True)
class Seen:
    """One attempt between its claim and its end. Times: `time.monotonic`; `ended`: when its answer was whole; `left`: when the
    engine was rid of it. `payloads`: chunks that came. `share_s`: of the engine's time."""

    lease: Lease
    beside: int
    started: float
    call: EngineCall | None = None
    began: float = 0.0
    first: float | None = None
    ended: float = 0.0
    left: float = 0.0
    payloads: int = 0
    final: Final | None = None
    share_s: float = 0.0

    def since_accepted_s(self, moment: float) -> float:
        """From the job's acceptance to a moment (`time.monotonic`) of this attempt, seconds."""
        return self.lease.waited_s + moment - self.started


class Follower(Protocol):
    """Who wants to know of each end. Must not block, nor raise."""

    def saw(self, seen: Seen, outcome: str) -> None: ...


class Runs(Protocol):
    """A part that works beside the puller."""

    async def run(self) -> None:
        """Until cancelled."""


class Teller(Follower, Runs, Protocol):
    """Who tells others of them, now and then."""

    async def flush(self) -> None:
        """Tells everything that waits. Never raises."""


@dataclass(slots=True)
class BusyClock:
    """The integral of dt / (slots in use at t): two looks at it tell what one slot took in between."""

    reading: float = 0.0
    slots: int = 0
    at: float = 0.0

    def turn(self, slots: int, *, now: float) -> float:
        """So many slots more, or fewer, from now on. The reading at this moment."""
        if self.slots:
            self.reading += (now - self.at) / self.slots
        self.at, self.slots = now, self.slots + slots
        return self.reading


class Sight:
    """Of one worker and its engine."""

    def __init__(
        self,
        *followers: Follower,
        before: Callable[[Seen, EngineCall], EngineCall] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`before`: may change what the engine is asked."""
        self._followers = followers
        self._before = before
        self._now = clock
        self._running: dict[str, Seen] = {}
        self._clock = BusyClock()

    def watch(self, engine: Engine) -> Engine:
        """The same engine; what it yields for a job is seen on the way."""
        return _Watched(engine, self)

    def started(self, lease: Lease) -> None:
        self._running[lease.job_id] = Seen(lease, len(self._running), self._now())

    def ended(self, lease: Lease, outcome: str, *, run_s: float) -> None:  # noqa: ARG002 - the protocol's
        seen = self._running.pop(lease.job_id, None)
        if seen is not None:
            for follower in self._followers:
                follower.saw(seen, outcome)

    def close(self) -> None:
        """What runs is not told of."""

    async def relay(self, engine: Engine, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        """What the engine yields for the call, noted on the way. A job that was not claimed here is nobody's."""
        seen = self._running.get(call.job_id)
        slots = 0 if seen is None else seen.lease.choices
        since = self._clock.turn(slots, now=self._now())
        if seen is not None:
            seen.call, seen.began = call, self._clock.at
            call = call if self._before is None else self._before(seen, call)
        try:
            async with aclosing(engine.generate(call)) as items:
                async for item in items:
                    self._note(seen, item)
                    yield item
        finally:
            reading = self._clock.turn(-slots, now=self._now())
            if seen is not None:
                seen.left, seen.share_s = self._clock.at, seen.share_s + slots * (reading - since)

    def _note(self, seen: Seen | None, item: Delta | Final) -> None:
        if seen is None:
            return
        if isinstance(item, Final):
            seen.final, seen.ended = item, self._now()
            return
        seen.payloads += item.count
        if seen.first is None:
            seen.first = self._now()


class _Watched:
    """An engine that is looked at."""

    def __init__(self, engine: Engine, sight: Sight) -> None:
        self._engine = engine
        self._sight = sight

    @property
    def name(self) -> str:
        return self._engine.name

    @name.setter
    def name(self, name: str) -> None:
        self._engine.name = name

    @property
    def pid(self) -> int | None:
        return self._engine.pid

    @pid.setter
    def pid(self, pid: int | None) -> None:
        self._engine.pid = pid

    async def start(self) -> None:
        await self._engine.start()

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        return self._sight.relay(self._engine, call)

    async def abort(self, job_id: str) -> None:
        await self._engine.abort(job_id)

    async def load(self) -> EngineLoad:
        return await self._engine.load()

    async def health(self) -> bool:
        return await self._engine.health()

    async def limits(self) -> EngineLimits:
        return await self._engine.limits()

    async def close(self) -> None:
        await self._engine.close()
