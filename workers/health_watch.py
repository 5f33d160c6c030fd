"""Asks an engine now and then whether it is well, at its own health page: nothing is generated for that.

Invariant: an engine that sends tokens is not dead, whatever its health page says or does not say. A probe that hangs has failed.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from workers.engine import Engine

log = logging.getLogger("headway.health")
EVERY_S = 5.0
PATIENCE = 0.8  # of the interval; then a probe has failed
FAILURES = 3  # in a row, then the engine is given up
SUCCESSES = 2  # in a row, then it is trusted again
RETRY_S = 1.0  # between looks at an engine that was given up,
AGAIN_S = 0.25  # and after one that went well


class HealthWatch:
    """`run` it as a task for an engine that works; `recovered` asks one that has been given up."""

    def __init__(self, engine: Engine, *, on_gone: Callable[[], None]) -> None:
        self.every_s = EVERY_S
        self.failures = 0
        self._successes = 0
        self._engine = engine
        self._on_gone = on_gone
        self._heard = float("-inf")

    def heard(self) -> None:
        """The engine has just sent something."""
        self._heard = time.monotonic()

    async def run(self, every_s: float = EVERY_S) -> None:
        """Until cancelled."""
        self.every_s = every_s
        while True:
            await asyncio.sleep(self.every_s * random.uniform(0.9, 1.1))
            await self.look()

    async def look(self) -> None:
        """Once; calls `on_gone` after so many failures in a row."""
        began = time.monotonic()
        well = await self._is_well()
        if well or self._heard >= began - self.every_s:
            self.failures = 0
            return
        self.failures += 1
        log.warning(
            "engine %s did not say that it is well (%d of %d)", self._engine.name, self.failures, FAILURES
        )
        if self.failures >= FAILURES:
            self.failures = 0
            self._on_gone()

    async def recovered(self) -> float:
        """Once; 0.0 if the engine may have jobs again, else after how many seconds to ask again."""
        self._successes = self._successes + 1 if await self._is_well() else 0
        if self._successes >= SUCCESSES:
            self._successes = 0
            return 0.0
        return AGAIN_S if self._successes else RETRY_S

    async def _is_well(self) -> bool:
        try:
            async with asyncio.timeout(self.every_s * PATIENCE):
                return await self._engine.health()
        except TimeoutError:
            return False
