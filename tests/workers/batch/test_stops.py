"""Batches that are stopped before they are done: by cancellation, or at the end of their window."""

import itertools

import pytest

from broker.batch_record import BatchStatus
from broker.batch_scripts import PLAN
from broker.errors import BatchEnded
from broker.job import Lease
from broker.scripts import Ending
from tests.conditions import wait_until
from tests.workers.batch.rig import (
    Bench,
    Engine,
    request_lines,
)


async def test_cancel_keeps_what_was_answered(table: Bench, held_engine: Engine) -> None:
    held_engine.slots = 1
    answered = itertools.count(1)

    def some(lease: Lease) -> Ending:
        if next(answered) == 5:
            held_engine.hold.clear()
        return Ending(True, b'{"n":1}')

    held_engine.answer = some
    held_engine.hold.set()
    batch = await table.submit(request_lines(100))
    await wait_until(lambda: not held_engine.hold.is_set(), what="five answers")
    assert await table.means.batches.cancel(batch.batch_id) == []
    assert (await table.get(batch)).status is BatchStatus.CANCELLING
    outcome = await table.ended(batch)
    assert outcome.batch.status is BatchStatus.CANCELLED
    assert len(outcome.answered) == 5
    assert outcome.errors == []
    assert outcome.batch.completed == 5
    assert sum(held_engine.asked.values()) == 5
    assert {"cancelling_at", "cancelled_at"} <= set(outcome.batch.times)
    assert await table.means.pipe.command("ZCARD", "hw:{small}:ready:2") == 0


async def test_cancel_before_the_plan_ends_with_nothing(table: Bench, engine: Engine) -> None:
    table.lose.add(PLAN)
    batch = await table.submit(request_lines(30))
    await table.means.batches.cancel(batch.batch_id)
    table.lose.clear()
    await table.send(batch.batch_id, PLAN)
    outcome = await table.ended(batch)
    assert outcome.batch.status is BatchStatus.CANCELLED
    assert outcome.output == []
    assert not engine.asked


async def test_cancel_of_an_ended_batch_is_refused_and_of_a_cancelled_one_repeated(
    table: Bench, engine: Engine
) -> None:
    batch = await table.submit(request_lines(1))
    await table.ended(batch)
    with pytest.raises(BatchEnded, match="completed"):
        await table.means.batches.cancel(batch.batch_id)
    table.lose.add(PLAN)
    other = await table.submit(request_lines(1))
    await table.means.batches.cancel(other.batch_id)
    assert await table.means.batches.cancel(other.batch_id) == []


async def test_lines_without_an_answer_at_the_end_of_the_window_expire(
    table: Bench, held_engine: Engine
) -> None:
    held_engine.slots = 1
    answered = itertools.count(1)

    def some(lease: Lease) -> Ending:
        if next(answered) == 3:
            held_engine.hold.clear()
        return Ending(True, b'{"n":1}')

    held_engine.answer = some
    batch = await table.submit(request_lines(30), window_s=1.5)
    held_engine.hold.set()
    outcome = await table.ended(batch)
    assert outcome.batch.status is BatchStatus.EXPIRED
    assert len(outcome.answered) == 3
    assert set(outcome.codes.values()) == {"batch_expired"}
    assert sorted([*outcome.answered, *outcome.codes], key=str) == sorted(f"r{n}" for n in range(30))
    assert (outcome.batch.total, outcome.batch.completed, outcome.batch.failed) == (30, 3, 27)
