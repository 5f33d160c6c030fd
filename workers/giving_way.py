"""Stopping batch work for a P0 job that waits, once it has waited long enough. Used by the puller; whom, says the ledger."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from broker.consumer import Consumer
from workers.capacity import Ledger
from workers.waiting import first_of

log = logging.getLogger("headway.pull")
MIN_WAIT_S = 0.005
PASSED_S = 1.0  # at most, before a job that was passed over is looked at again


@dataclass(frozen=True, slots=True)
class GivingWay:
    """`stop` hands a running job back to the queue."""

    consumer: Consumer
    ledger: Ledger
    stop: Callable[[str], None]

    async def make_room(self, room: asyncio.Event) -> None:
        """For a full worker that heard of a P0 job; `room`: a slot is free. Returns if that, or no such job waits.

        Who waits longest counts: the one that rang may have begun elsewhere.
        """
        told = False
        while (waited_s := await self.consumer.urgent_s()) is not None:
            now = time.monotonic()
            victim, patience_s = self.ledger.victim(now=now), self.ledger.patience_s(now=now)
            if victim is None or patience_s is None or self.ledger.free:
                return
            if waited_s >= patience_s:
                self._give_way(victim, waited_s)
                await room.wait()
                return
            if not told:
                await self.consumer.ring_on(also_full=self.ledger.is_dear(victim, now=now))
            told = True
            if await _happens(room, within_s=max(MIN_WAIT_S, patience_s - waited_s)):
                return

    async def spare_tokens(self, asked_at: float) -> float:
        """For a worker whose claim passed jobs over, as its KV tokens are short. After how many s to claim again.

        `asked_at`: monotonic s, of the claim. A P0 job that has come since may fit, so it is no reason to stop anybody.
        """
        waited_s, now = await self.consumer.urgent_s(), time.monotonic()
        victim, patience_s = self.ledger.victim(now=now), self.ledger.patience_s(now=now)
        if waited_s is None or victim is None or patience_s is None or self.ledger.is_clearing:
            return PASSED_S
        left_s = patience_s + (now - asked_at) - waited_s
        if left_s <= 0:
            self._give_way(victim, waited_s)
            return PASSED_S
        return max(MIN_WAIT_S, left_s)

    def _give_way(self, victim: str, waited_s: float) -> None:
        log.info("%s is stopped for a P0 job that has waited %.2f s", victim, waited_s)
        self.ledger.missed(now=time.monotonic())
        self.stop(victim)


async def _happens(event: asyncio.Event, *, within_s: float) -> bool:
    await first_of(event, within_s=within_s)
    return event.is_set()
