"""Whatever is lost, sent twice or taken over: every line is answered once, and asked for once."""

import asyncio
import itertools

import pytest

from broker.batch_record import BatchView
from broker.batch_scripts import PLAN
from broker.errors import RedisAway
from broker.job import Forecast, Lease, ServiceClass, Submission
from broker.scripts import Ending
from broker.settings import Settings
from tests.conditions import wait_until
from tests.workers.batch.rig import (
    ENDPOINT,
    Bench,
    Engine,
    bench,
    each_once,
    request_lines,
)
from workers.batch import means
from workers.batch.units import NOT_OURS, Progress


async def test_a_unit_that_is_sent_twice_is_done_once(table: Bench, held_engine: Engine) -> None:
    batch = await table.submit(request_lines(10))
    await wait_until(lambda: "0" in table.sent, what="the slice is sent")
    await table.send(batch.batch_id, "0")
    await wait_until(lambda: NOT_OURS in table.said, what="the second one is turned away")
    held_engine.hold.set()
    outcome = await table.ended(batch)
    assert each_once(outcome.answered, 10)
    assert set(held_engine.asked.values()) == {1}
    assert await table.units.do(batch.batch_id, "0", progress=Progress()) == NOT_OURS


async def test_a_slice_whose_holder_died_is_done_again_without_asking_again(
    settings: Settings, table: Bench, engine: Engine
) -> None:
    answers = itertools.count()
    reached = asyncio.Event()

    def some(lease: Lease) -> Ending:
        if next(answers) == 6:
            reached.set()
            engine.hold.clear()
        return Ending(True, b'{"n":1}')

    engine.answer, engine.slots = some, 1
    async with bench(settings) as dying:
        batch = await dying.submit(request_lines(10))
        await reached.wait()
    asked_before = dict(engine.asked)
    engine.hold.set()
    await asyncio.gather(_expire_lease(table, batch, "0"), table.send(batch.batch_id, "0"))
    await _resend(table, batch)
    outcome = await table.ended(batch)
    assert each_once(outcome.answered, 10)
    assert asked_before
    assert set(engine.asked.values()) == {1}
    assert outcome.batch.completed == 10


async def _expire_lease(table: Bench, batch: BatchView, unit: str) -> None:
    """As if its holder had not been heard of for longer than the lease."""
    prefix = f"hw:batch:{{{batch.batch_id}}}"
    await table.means.pipe.command("HSET", f"{prefix}:unit:{unit}", "until", 1)
    await table.means.pipe.command("ZADD", f"{prefix}:todo", "XX", 1, unit)


async def _resend(table: Bench, batch: BatchView) -> None:
    """What the sweeper does."""
    for unit in await table.means.batches.due(batch.batch_id):
        await table.send(batch.batch_id, unit)


async def test_a_stale_holder_changes_nothing(settings: Settings, table: Bench, held_engine: Engine) -> None:
    async with bench(settings) as stale:
        batch = await stale.submit(request_lines(10))
        await wait_until(lambda: len(stale.tasks) == 1 and "0" in stale.sent)
        await wait_until(lambda: _is_taken(table, batch), what="the slice is taken")
        await _expire_lease(table, batch, "0")
        await _resend(table, batch)
        await wait_until(lambda: any("no longer ours" in said for said in stale.said), what="it notices")
        held_engine.hold.set()
        outcome = await table.ended(batch)
    assert each_once(outcome.answered, 10)
    assert outcome.batch.completed == 10
    assert set(held_engine.asked.values()) == {1}


async def _is_taken(table: Bench, batch: BatchView) -> bool:
    key = f"hw:batch:{{{batch.batch_id}}}:unit:0"
    return bool(await table.means.pipe.command("HEXISTS", key, "token"))


@pytest.mark.parametrize("unit", [PLAN, "0", "2", "finalize"])
async def test_a_lost_message_is_sent_again_by_the_sweep(table: Bench, engine: Engine, unit: str) -> None:
    table.lose.add(unit)
    batch = await table.submit(request_lines(30))
    await wait_until(lambda: unit in table.sent and not table.tasks, what="the message is lost")
    await _resend(table, batch)
    assert table.sent.count(unit) == 1, "the message may still be on its way"
    table.lose.clear()
    await table.means.pipe.command("ZADD", f"hw:batch:{{{batch.batch_id}}}:todo", "XX", 1, unit)
    await _resend(table, batch)
    outcome = await table.ended(batch)
    assert each_once(outcome.answered, 30)


async def test_an_ended_batch_leaves_no_unit_and_no_part(table: Bench, engine: Engine) -> None:
    batch = await table.submit(request_lines(30))
    await table.ended(batch)
    await wait_until(lambda: not table.tasks)
    assert await table.means.batches.active() == []
    keys = await table.means.pipe.command("KEYS", f"hw:batch:{{{batch.batch_id}}}*")
    assert len(keys) == 1
    assert await table.means.files.storage.names("batches") == []
    assert table.means.files.storage.sweep_temporary(older_than_s=-1) == 0


async def test_a_stopping_worker_hands_its_slices_back_at_once(
    settings: Settings, table: Bench, held_engine: Engine
) -> None:
    async with bench(settings) as stopping:
        batch = await stopping.submit(request_lines(10))
        await wait_until(lambda: _is_taken(table, batch))
        stopping.means.stopping.set()
        await wait_until(
            lambda: any("handed back" in said for said in stopping.said), what="the slice is handed back"
        )
        await stopping.units.do(batch.batch_id, "1", progress=Progress())
        assert stopping.units.handed_back == [(batch.batch_id, "0"), (batch.batch_id, "1")]
    held_engine.hold.set()
    await table.send(batch.batch_id, "0")
    outcome = await table.ended(batch)
    assert each_once(outcome.answered, 10)
    assert set(held_engine.asked.values()) == {1}


async def test_a_slice_that_no_worker_gets_through_is_given_up(table: Bench, engine: Engine) -> None:
    table.lose |= {"0", "1"}
    batch = await table.submit(request_lines(20))
    await wait_until(lambda: "1" in table.sent and not table.tasks)
    await table.means.pipe.command("HSET", f"hw:batch:{{{batch.batch_id}}}:unit:0", "token", 1000)
    table.lose.clear()
    for unit in ("0", "1"):
        await table.send(batch.batch_id, unit)
    outcome = await table.ended(batch)
    assert [line["error"]["code"] for line in outcome.errors] == ["slice_failed"]
    assert (outcome.batch.completed, outcome.batch.failed) == (10, 10)


async def test_held_job_is_let_in_as_soon_as_redis_is_back(
    table: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = table.means.producer
    held = Submission(
        "job_" + "0" * 26 + ".small",
        ServiceClass.P2,
        ENDPOINT,
        b"{}",
        Forecast(1, 1, 1.0),
        hold_s=means.HOLD_S,
    )
    await producer.submit(held)
    feed, away = producer.feed, itertools.repeat(RedisAway("away"), 2)

    async def sometimes(job_id: str) -> bool:
        for error in away:
            raise error
        return await feed(job_id)

    monkeypatch.setattr(producer, "feed", sometimes)
    monkeypatch.setattr(means, "RETRY_S", 0.01)
    assert await means.let_in(table.means, held.job_id)
    assert not await means.let_in(table.means, held.job_id)
    await producer.cancel(held.job_id)
