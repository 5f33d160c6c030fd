"""When a lease is kept, lost, and no longer needed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.batch_record import BatchSpec, Mode, Taken
from broker.batch_scripts import PLAN, Cut, Held, Tally
from broker.batches import BatchStore
from broker.connection import Pipe
from broker.errors import StaleToken
from workers.batch.lease import Keeper


class Gated(BatchStore):
    """Renewals wait for `gate` before they are sent; `asked` and `answered` tell how far one is."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(pipe, ttl_s=3600)
        self.asked, self.gate, self.answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def renew(self, held: Held, tally: Tally, *, lease_s: float) -> Mode:
        self.asked.set()
        await self.gate.wait()
        try:
            return await super().renew(held, tally, lease_s=lease_s)
        finally:
            self.answered.set()


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Gated]:
    pipe = Pipe(redis_url)
    yield Gated(pipe)
    await pipe.close()


async def take_slice(store: BatchStore) -> Taken:
    batch = await store.create(BatchSpec("file-a", "/v1/completions"))
    plan = await store.take(batch.batch_id, PLAN, lease_s=10)
    assert plan is not None
    await store.cut_slice(plan.held, Cut(0, 0, 1, 1, 1))
    await store.planned(plan.held, lines=1, slices=1, at_once=1)
    taken = await store.take(batch.batch_id, "0", lease_s=10)
    assert taken is not None
    return taken


async def test_a_renewal_that_comes_after_the_last_write_does_not_undo_it(store: Gated) -> None:
    taken = await take_slice(store)
    keeper = Keeper(store, taken, lease_s=0.03)

    async def work() -> list[str]:
        await store.asked.wait()
        keeper.ending = True
        units = await store.done(taken.held, Tally(1))
        store.gate.set()
        await store.answered.wait()
        await asyncio.sleep(0)
        return units

    assert await keeper.during(work()) == ["finalize"]


async def test_work_is_cancelled_when_another_task_has_the_unit(store: Gated) -> None:
    taken = await take_slice(store)
    await store.done(taken.held, Tally(1))
    store.gate.set()
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(StaleToken):
        await Keeper(store, taken, lease_s=0.03).during(work())
    assert cancelled.is_set()


async def test_an_error_of_the_work_is_the_caller_s(store: Gated) -> None:
    taken = await take_slice(store)

    async def work() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        await Keeper(store, taken, lease_s=10).during(work())
