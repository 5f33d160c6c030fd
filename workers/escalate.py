"""One lease on the first pass of a routed job: what is wrong with it, and handing the job on to the larger model (ADR 10)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from broker.errors import EngineError, RedisAway, StaleToken
from broker.heirs import Heirs
from broker.job import Lease
from broker.scripts import Ending
from workers.engine import (
    Delta,
    EngineAborted,
    EngineBusy,
    EngineRejected,
    EngineUnavailable,
    Final,
    Usage,
)
from workers.guard import Guard, Unfit

T = TypeVar("T")
BEGUN = "begun_before"  # by an attempt that did not get to say why
DIED = "worker_died"


class Insist(Protocol):
    """Repeats a call while Redis is away, for as long as the lease lasts. Raises StaleToken."""

    async def __call__(self, write: Callable[[], Awaitable[T]], /) -> T: ...


class Escalation:
    """`why` once the successor is queued: the lease is then to be ended with `ending`."""

    def __init__(self, lease: Lease, request: dict[str, Any], *, heirs: Heirs, insist: Insist) -> None:
        self.guard = Guard(lease, request)
        self.why = ""
        self.usage: Usage | None = None
        self._lease = lease
        self._request = request
        self._heirs = heirs
        self._insist = insist

    async def begun(self) -> bool:
        """Whether it is not to run here: an earlier attempt had the successor queued and died then, or one more death of a
        worker would be the job's end. Raises StaleToken."""
        if self._lease.attempt == 1:
            return False
        if await self._insist(lambda: self._heirs.exists(self._lease.heir)):
            self.why = BEGUN
        elif await self._insist(lambda: self._heirs.is_last_try(self._lease)):
            await self._pass_on(DIED, in_time=False)
        return bool(self.why)

    async def next(self, item: Delta | Final) -> list[Delta]:
        """What may be sent on now; nothing more once `why` is set. Raises StaleToken."""
        guard = self.guard
        try:
            if isinstance(item, Delta):
                return guard.take(item)
            self.usage = item.usage
            return guard.end(item)
        except Unfit as unfit:
            return [] if await self._pass_on(unfit.why, in_time=True) else guard.give_in()

    async def after(self, error: EngineError) -> bool:
        """Hands a job on that failed, unless its caller has seen a part of the answer. Raises StaleToken."""
        why = self._why(error)
        return bool(why) and not self.guard.is_bound and await self._pass_on(why, in_time=False)

    def ending(self) -> Ending:
        """Of the first pass."""
        used = self.usage or Usage(
            self._heirs.prompt_tokens(self._lease, self._request), self.guard.payloads, 0, recounted=True
        )
        return Ending(
            succeeded=False,
            data=b"",
            prompt_tokens=used.prompt_tokens,
            output_tokens=used.completion_tokens,
            cached_tokens=used.cached_tokens,
            recounted=used.recounted,
            heir=self._lease.heir,
            why=self.why,
            confidence=self.guard.confidence,
        )

    async def undo(self) -> None:
        """The lease was lost before the job could be marked."""
        try:
            await self._heirs.undo(self._lease)
        except RedisAway:
            return  # it runs for nobody, until its deadline at most

    async def _pass_on(self, why: str, *, in_time: bool) -> bool:
        try:
            if await self._insist(lambda: self._heirs.submit(self._lease, self._request, in_time=in_time)):
                self.why = why
        except (asyncio.CancelledError, StaleToken):
            await self.undo()
            raise
        return bool(self.why)

    def _why(self, error: EngineError) -> str:
        """A busy engine is no failure, and one that cannot be reached is not the model's: the first time."""
        match error:
            case EngineBusy() | EngineAborted():
                return ""
            case EngineUnavailable():
                return "engine_error" if self._lease.attempt > 1 else ""
            case EngineRejected():
                return "engine_rejected"
            case _:
                return "engine_error"
