"""Leases on units, counts and ends of a batch, script by script. What tasks make of it: tests/workers/batch."""

import pytest

from broker.batch_record import BatchSpec, BatchStatus, BatchView, Mode, Taken
from broker.batch_scripts import FINALIZE, PLAN, Cut, Tally
from broker.batches import BatchStore
from broker.connection import Pipe
from broker.errors import StaleToken, UnknownBatch
from tests.broker.jobs import LONG_AGO, Backdoor

SPEC = BatchSpec("file-a", "/v1/completions")


@pytest.fixture
def store(pipe: Pipe) -> BatchStore:
    return BatchStore(pipe, ttl_s=3600)


async def take(store: BatchStore, batch: BatchView, unit: str) -> Taken:
    taken = await store.take(batch.batch_id, unit, lease_s=10)
    assert taken is not None
    return taken


async def planned(store: BatchStore, *, slices: int, at_once: int = 2) -> BatchView:
    """A batch with slices of ten lines."""
    batch = await store.create(SPEC)
    plan = await take(store, batch, PLAN)
    for number in range(slices):
        await store.cut_slice(plan.held, Cut(number, number * 100, number * 100 + 99, number * 10 + 1, 10))
    units = await store.planned(plan.held, lines=slices * 10, slices=slices, at_once=at_once)
    assert units == [str(n) for n in range(min(slices, at_once))]
    return await store.get(batch.batch_id)


def end_lease(backdoor: Backdoor, batch: BatchView, unit: str) -> None:
    prefix = f"hw:batch:{{{batch.batch_id}}}"
    backdoor.ask("HSET", f"{prefix}:unit:{unit}", "until", LONG_AGO)
    backdoor.ask("ZADD", f"{prefix}:todo", "XX", LONG_AGO, unit)


async def test_a_unit_is_leased_to_one_task_at_a_time(store: BatchStore, backdoor: Backdoor) -> None:
    batch = await planned(store, slices=1)
    first = await take(store, batch, "0")
    assert first.is_first
    assert first.cut == Cut(0, 0, 99, 1, 10)
    assert await store.take(batch.batch_id, "0", lease_s=10) is None
    end_lease(backdoor, batch, "0")
    second = await take(store, batch, "0")
    assert second.held.token > first.held.token
    assert not second.is_first


async def test_a_stale_token_changes_nothing(store: BatchStore, backdoor: Backdoor) -> None:
    batch = await planned(store, slices=1)
    stale = (await take(store, batch, "0")).held
    end_lease(backdoor, batch, "0")
    await take(store, batch, "0")
    before = backdoor.snapshot()
    with pytest.raises(StaleToken):
        await store.renew(stale, Tally(5, 5), lease_s=10)
    with pytest.raises(StaleToken):
        await store.done(stale, Tally(5, 5))
    with pytest.raises(StaleToken):
        await store.cut_slice(stale, Cut(9, 0, 1, 1, 1))
    with pytest.raises(StaleToken):
        await store.end(stale)
    assert backdoor.snapshot() == before


async def test_counts_follow_the_last_run_of_a_slice(store: BatchStore, backdoor: Backdoor) -> None:
    batch = await planned(store, slices=2)
    held = (await take(store, batch, "0")).held
    await store.renew(held, Tally(4, 1), lease_s=10)
    other = (await take(store, batch, "1")).held
    await store.renew(other, Tally(2, 0), lease_s=10)
    end_lease(backdoor, batch, "0")
    again = (await take(store, batch, "0")).held
    await store.renew(again, Tally(1, 0), lease_s=10)
    now = await store.get(batch.batch_id)
    assert (now.completed, now.failed) == (3, 0)
    await store.done(again, Tally(9, 1))
    await store.done(other, Tally(10, 0))
    with pytest.raises(StaleToken):
        await store.done(again, Tally(9, 1))
    now = await store.get(batch.batch_id)
    assert (now.total, now.completed, now.failed, now.done) == (20, 19, 1, 2)


async def test_slices_go_out_a_few_at_a_time_then_the_batch_is_put_together(store: BatchStore) -> None:
    batch = await planned(store, slices=4, at_once=2)
    out = ["0", "1"]
    order = []
    while out[0] != FINALIZE:
        unit = out.pop(0)
        order.append(unit)
        out += await store.done((await take(store, batch, unit)).held, Tally(10, 0))
    assert order == ["0", "1", "2", "3"]
    assert (await store.get(batch.batch_id)).status is BatchStatus.FINALIZING
    assert await store.parts(await store.get(batch.batch_id)) == {0: 1, 1: 1, 2: 1, 3: 1}
    await store.end((await take(store, batch, FINALIZE)).held, output="file-o")
    ended = await store.get(batch.batch_id)
    assert (ended.status, ended.output_file_id) == (BatchStatus.COMPLETED, "file-o")
    assert await store.take(batch.batch_id, "0", lease_s=10) is None


async def test_cancel_lets_the_slices_that_are_out_end(store: BatchStore) -> None:
    batch = await planned(store, slices=9, at_once=2)
    held = (await take(store, batch, "0")).held
    assert await store.cancel(batch.batch_id) == []
    assert await store.renew(held, Tally(1, 0), lease_s=10) is Mode.CANCEL
    assert await store.done(held, Tally(1, 0)) == []
    assert await store.done((await take(store, batch, "1")).held, Tally()) == [FINALIZE]
    await store.end((await take(store, batch, FINALIZE)).held)
    ended = await store.get(batch.batch_id)
    assert (ended.status, ended.completed, ended.sent) == (BatchStatus.CANCELLED, 1, 2)


async def test_past_its_window_a_batch_is_to_expire(store: BatchStore, backdoor: Backdoor) -> None:
    batch = await planned(store, slices=1)
    backdoor.ask("HSET", f"hw:batch:{{{batch.batch_id}}}", "expires_at", LONG_AGO)
    taken = await take(store, batch, "0")
    assert taken.mode is Mode.EXPIRE
    await store.done(taken.held, Tally(0, 10, 10))
    await store.end((await take(store, batch, FINALIZE)).held)
    assert (await store.get(batch.batch_id)).status is BatchStatus.EXPIRED


async def test_due_finds_what_was_not_taken_and_waits_twice_as_long_each_time(
    store: BatchStore, backdoor: Backdoor
) -> None:
    batch = await planned(store, slices=3, at_once=3)
    todo = f"hw:batch:{{{batch.batch_id}}}:todo"
    assert await store.due(batch.batch_id) == []
    waits = []
    for _ in range(3):
        backdoor.ask("ZADD", todo, "XX", LONG_AGO, "1")
        assert await store.due(batch.batch_id) == ["1"]
        seconds, _ = backdoor.ask("TIME")
        waits.append(round(float(backdoor.ask("ZSCORE", todo, "1")) / 1000 - int(seconds)))
    assert waits[1] >= 2 * waits[0] - 2
    assert waits[2] >= 2 * waits[1] - 2


async def test_ended_and_vanished_batches_leave_the_active_ones(
    store: BatchStore, backdoor: Backdoor
) -> None:
    ended, vanished, fresh = [await store.create(SPEC) for _ in range(3)]
    await store.end((await take(store, ended, PLAN)).held, errors=b"[]")
    backdoor.ask("ZADD", "hw:batches:active", LONG_AGO, ended.batch_id, LONG_AGO, vanished.batch_id)
    for batch in (vanished, fresh):
        backdoor.ask("DEL", f"hw:batch:{{{batch.batch_id}}}")
    for batch in (ended, vanished, fresh):
        await store.due(batch.batch_id)
    assert await store.active() == [fresh.batch_id], "it may be about to be created"


async def test_an_unknown_batch_is_said_to_be_so(store: BatchStore) -> None:
    for ask in (store.get, store.cancel):
        with pytest.raises(UnknownBatch, match="batch_x"):
            await ask("batch_x")
    assert await store.take("batch_x", PLAN, lease_s=1) is None


async def test_equal_keys_of_a_tenant_give_one_batch(store: BatchStore) -> None:
    first = await store.create(BatchSpec("file-a", "/v1/completions", key="k"))
    assert await store.create(BatchSpec("file-a", "/v1/completions", key="k")) == first
    other = await store.create(BatchSpec("file-a", "/v1/completions", key="k", tenant="t"))
    assert other.batch_id != first.batch_id
    assert (await store.list_batches(limit=1)) == ([other], True)
