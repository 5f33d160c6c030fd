"""Does a unit of a batch under its lease, from the message about it to the messages that follow from it.

A message is only a hint: what is to be done is in Redis. A unit that is done, or held by another task, is left alone.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from broker.batch_record import BatchView
from broker.batch_scripts import FINALIZE, PLAN
from broker.errors import StaleToken, UnknownBatch
from workers.batch.ask import HandedBack
from workers.batch.feed import SliceRun
from workers.batch.finalize import finalize
from workers.batch.lease import Keeper
from workers.batch.means import Means
from workers.batch.plan import plan

log = logging.getLogger("headway.batch")
STOPPING = "handed back: this worker stops"
NOT_OURS = "done already, or somebody else's"
Send = Callable[[str, str], Awaitable[None]]


class Progress:
    """What Flower is told while a task runs. Written in the loop, read by the task's thread."""

    keeper: Keeper | None = None

    def __str__(self) -> str:
        if self.keeper is None or self.keeper.taken.cut is None:
            return ""
        tally = self.keeper.tally
        done = tally.completed + tally.failed
        return f"{done}/{self.keeper.taken.cut.lines} lines, {tally.failed} failed"


class Units:
    """`send` is given batch and unit; it must not raise, for a message that is lost is made up for.

    `handed_back`: units to be sent when this worker takes no more messages, or it would get them itself.
    """

    def __init__(self, means: Means, send: Send) -> None:
        self._means = means
        self._send = send
        self.handed_back: list[tuple[str, str]] = []
        self._slices = 0
        self._waiting: dict[tuple[str, str], None] = {}

    async def do(self, batch_id: str, unit: str, *, progress: Progress) -> str:
        """Says how it went. Raises RedisAway, OSError: the lease runs out, then the sweeper sends the unit again."""
        if self._means.stopping.is_set():
            self.handed_back.append((batch_id, unit))
            return STOPPING
        if unit in (PLAN, FINALIZE):
            return await self._do(batch_id, unit, progress=progress)
        if self._slices >= self._means.settings.celery_concurrency:
            # threads must be left for short tasks; the next slice to end lets it in, or else the sweeper does
            self._waiting[batch_id, unit] = None
            return "waits for another slice to end"
        self._slices += 1
        try:
            return await self._do(batch_id, unit, progress=progress)
        finally:
            self._slices -= 1
            await self._let_in()

    async def _let_in(self) -> None:
        """One of those that wait; all of them when the worker stops."""
        if self._means.stopping.is_set():
            self.handed_back += self._waiting
            self._waiting.clear()
        elif self._waiting:
            following = next(iter(self._waiting))
            del self._waiting[following]
            await self._send(*following)

    async def _do(self, batch_id: str, unit: str, *, progress: Progress) -> str:
        lease_s = self._means.settings.lease_s
        taken = await self._means.batches.take(batch_id, unit, lease_s=lease_s)
        if taken is None:
            return NOT_OURS
        keeper = progress.keeper = Keeper(self._means.batches, taken, lease_s=lease_s)
        try:
            batch = await self._means.batches.get(batch_id)
            units = await keeper.during(self._work(batch, unit, keeper=keeper))
        except HandedBack:
            await keeper.give_back()
            self.handed_back.append((batch_id, unit))
            return STOPPING
        except (StaleToken, UnknownBatch) as error:
            log.warning("%s", error)
            return str(error)
        await self._send_all(batch_id, units)
        return str(progress) or "done"

    async def _work(self, batch: BatchView, unit: str, *, keeper: Keeper) -> list[str]:
        match unit:
            case "plan":
                return await plan(self._means, batch, keeper=keeper)
            case "finalize":
                return await finalize(self._means, batch, keeper=keeper)
            case _:
                return await SliceRun(self._means, batch, keeper=keeper).run()

    async def _send_all(self, batch_id: str, units: Sequence[str]) -> None:
        for unit in units:
            await self._send(batch_id, unit)
