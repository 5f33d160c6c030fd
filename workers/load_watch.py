"""Looks at an engine's load now and then, for whoever must not wait for it: the ledger, the heartbeat.

Invariant: a load that was seen too long ago is unknown, not "still busy" and not "free".
"""

import asyncio
import logging
import time
from typing import Protocol

from workers.engine import Engine, EngineLoad, EngineUnavailable

log = logging.getLogger("headway.load")
STALE_LOOKS = 5  # that many periods without an answer


class OnLook(Protocol):
    """Gets what is known now, which is nothing if the last answer is too old."""

    def __call__(self, load: EngineLoad, *, now: float) -> None: ...


class LoadWatch:
    """`run` it as a task; `seen` may be called from any thread."""

    def __init__(self, engine: Engine, *, every_s: float, on_look: OnLook | None = None) -> None:
        """`on_look` is told after every look, also a vain one."""
        self._engine = engine
        self._every_s = every_s
        self._on_look = on_look
        self._last: tuple[float, EngineLoad] = (float("-inf"), EngineLoad())
        self._failing = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Once. An engine that does not answer leaves the last load, which goes stale."""
        try:
            load = await self._engine.load()
        except EngineUnavailable as error:
            if not self._failing:
                log.info("load unknown: %s", error)
            self._failing = True
        else:
            self._failing = False
            self._last = (time.monotonic(), load)
        if self._on_look is not None:
            now = time.monotonic()
            self._on_look(self.seen(now=now), now=now)

    def seen(self, *, now: float) -> EngineLoad:
        """`now`: monotonic seconds."""
        at, load = self._last
        return load if now - at <= STALE_LOOKS * self._every_s else EngineLoad()
