"""Keeps the lease on a unit of a batch while it is worked on, and stops the work when the lease is lost.

A worker that cannot renew in time stops before another may begin: it trusts its lease only for as long as Redis has
promised it, counted from before it asked.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from broker.batch_record import Mode, Taken
from broker.batch_scripts import Tally
from broker.batches import BatchStore
from broker.errors import BrokerError, QueueFull, RedisAway, StaleToken

log = logging.getLogger("headway.batch")
T = TypeVar("T")
BEAT_S = 0.5  # also how soon progress and a cancellation are seen


class Keeper:
    """`mode` follows the batch, and `changed` tells; `tally` is set by the work: the lines that it has an answer for.

    `ending` is set by the work before its last write, which is fenced itself: from then on a renewal that finds the
    unit gone may only mean that this write has come through.
    """

    def __init__(self, batches: BatchStore, taken: Taken, *, lease_s: float) -> None:
        self.taken = taken
        self.mode: Mode = taken.mode
        self.tally = Tally()
        self.changed = asyncio.Event()
        self.ending = False
        self._batches = batches
        self._lease_s = lease_s
        self._trusted_until = asyncio.get_running_loop().time() + lease_s

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. Raises StaleToken when the unit is no longer ours; the work is cancelled then."""
        task = asyncio.create_task(work)
        beat = asyncio.create_task(self._beat())
        try:
            await asyncio.wait({task, beat}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                beat.result()
            return await task
        finally:
            for each in (task, beat):
                each.cancel()
            await asyncio.gather(task, beat, return_exceptions=True)

    async def give_back(self) -> None:
        """Ends the lease early, so that the unit can be taken at once. Best effort."""
        try:
            await self._batches.renew(self.taken.held, self.tally, lease_s=0.0)
        except (RedisAway, StaleToken) as error:
            log.debug("not given back: %s", error)

    async def _beat(self) -> None:
        """Ends by raising StaleToken, or when the work is about to end by itself."""
        loop = asyncio.get_running_loop()
        every_s = min(BEAT_S, self._lease_s / 3)
        while not self.ending:
            await asyncio.sleep(every_s)
            asked = loop.time()
            try:
                mode = await self._batches.renew(self.taken.held, self.tally, lease_s=self._lease_s)
            except (RedisAway, QueueFull, StaleToken) as error:
                if isinstance(error, StaleToken) or loop.time() > self._trusted_until:
                    self._lost(error)
                continue
            self._trusted_until = asked + self._lease_s
            if mode is not self.mode:
                self.mode = mode
                self.changed.set()

    def _lost(self, error: BrokerError) -> None:
        if not self.ending:
            raise StaleToken(f"the lease on {self.taken.held} could not be kept: {error}") from None
