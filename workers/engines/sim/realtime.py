"""The replica in real time, or a multiple of it: each step is waited for, then its tokens go to whoever asked for them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workers.engines.sim.replica import Emitted, Replica, StepResult
from workers.engines.sim.sequence import Request

MAX_LAG_S = 0.1  # what may be made up for when the host was too slow for a step


class Stream:
    """What one caller gets: the tokens of each step, and at the end how much of the prompt was cached."""

    def __init__(self, requests: int) -> None:
        self._steps: asyncio.Queue[list[Emitted]] = asyncio.Queue()
        self._left = requests
        self.cached_tokens = 0

    @property
    def ended(self) -> bool:
        return not self._left and self._steps.empty()

    async def next(self) -> list[Emitted]:
        """The tokens of the next step that had any."""
        return await self._steps.get()

    def put(self, tokens: list[Emitted], result: StepResult) -> None:
        for request_id in {token.request_id for token in tokens if token.ends} & result.finished.keys():
            self._left -= 1
            self.cached_tokens += result.finished[request_id]
        self._steps.put_nowait(tokens)


class Runner:
    """`speed`: simulated seconds per second of `now`; `slow_factor`: how much longer than modelled a step takes."""

    def __init__(self, replica: Replica, *, speed: float = 1.0, slow_factor: float = 1.0) -> None:
        self.replica = replica
        self.frozen = False
        self._pace = slow_factor / speed
        self._streams: dict[str, Stream] = {}
        self._work = asyncio.Event()
        self._watchers: list[Callable[[StepResult], None]] = []
        self._busy_s = 0.0
        self._busy_since: float | None = None

    @property
    def busy_s(self) -> float:
        """Seconds of the wall in which there was anything to do."""
        now_s = 0.0 if self._busy_since is None else asyncio.get_running_loop().time() - self._busy_since
        return self._busy_s + now_s

    def watch(self, watcher: Callable[[StepResult], None]) -> None:
        """It is called after every step."""
        self._watchers.append(watcher)

    @contextmanager
    def open(self, requests: list[Request]) -> Iterator[Stream]:
        """Raises ValueError as `Replica.add`. What has not finished at the end of the context is aborted."""
        stream = Stream(len(requests))
        try:
            for request in requests:
                self.replica.add(request)
                self._streams[request.request_id] = stream
            self._work.set()
            yield stream
        finally:
            for request in requests:
                if self._streams.pop(request.request_id, None) is not None:
                    self.replica.abort(request.request_id)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.replica.busy or self.frozen:
                self._busy_s, self._busy_since = self.busy_s, None
                self._work.clear()
                await self._work.wait()
                due = self._busy_since = loop.time()
                continue
            result = self.replica.step()
            due = max(due + result.seconds * self._pace, loop.time() - MAX_LAG_S)
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._deliver(result)

    def _deliver(self, result: StepResult) -> None:
        """An aborted request has no stream any more, and its last tokens go nowhere."""
        tokens: dict[Stream, list[Emitted]] = {}
        for token in result.emitted:
            if (stream := self._streams.get(token.request_id)) is not None:
                tokens.setdefault(stream, []).append(token)
        for stream, its in tokens.items():
            stream.put(its, result)
        for watcher in self._watchers:
            watcher(result)
