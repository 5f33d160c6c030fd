"""`request_counts`: a line that has its answer counts at once, whatever becomes of the lines before it, and once."""

from collections.abc import AsyncIterator, Awaitable, Callable

import orjson
import pytest

from broker.batch_record import BatchView
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import Lease
from broker.policy import Asking, Limits
from broker.scripts import Ending
from broker.settings import Settings
from tests.conditions import wait_until
from tests.workers.batch.rig import Bench, bench, echo, request_line, request_lines

LINES = 10


@pytest.fixture
async def consumer(redis_url: str) -> AsyncIterator[Consumer]:
    pipe = Pipe(redis_url)
    made = Consumer(pipe, redis_url, pool="small", asking=Asking("slow"), limits=Limits(lease_s=60.0))
    yield made
    await made.close()
    await pipe.close()


async def answer_all_but_the_first(consumer: Consumer) -> Lease:
    """Answers nine lines, one of them badly; the lease of the line that is not answered."""
    held: list[Lease] = []
    answered = 0
    while answered < LINES - 1:
        for lease in (await consumer.claim(1)).leases:
            text = orjson.loads(lease.body)["messages"][0]["content"]
            if text == "text 0":
                held.append(lease)
                continue
            bad = Ending(False, b'{"message":"no","type":"server_error","code":"c","param":null}')
            await consumer.finish(lease, bad if text == "text 5" else echo(lease))
            answered += 1
    return held[0]


def counts(table: Bench, batch: BatchView, wanted: tuple[int, int]) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        now = await table.get(batch)
        assert now.completed + now.failed <= LINES
        return (now.completed, now.failed) == wanted

    return reached


async def test_a_slow_first_line_does_not_hide_the_answers_after_it(table: Bench, consumer: Consumer) -> None:
    batch = await table.submit(request_lines(LINES))
    slow = await answer_all_but_the_first(consumer)
    await wait_until(counts(table, batch, (8, 1)), what="nine lines are counted")
    await consumer.finish(slow, echo(slow))
    outcome = await table.ended(batch)
    assert (outcome.batch.total, outcome.batch.completed, outcome.batch.failed) == (10, 9, 1)
    assert outcome.answered == [f"r{n}" for n in range(LINES) if n != 5]


async def test_a_slice_that_is_done_again_counts_no_line_twice(
    settings: Settings, table: Bench, consumer: Consumer
) -> None:
    async with bench(settings) as dying:
        batch = await dying.submit(request_lines(LINES))
        slow = await answer_all_but_the_first(consumer)
        await wait_until(counts(table, batch, (8, 1)), what="the first run counts nine lines")
    prefix = f"hw:batch:{{{batch.batch_id}}}"
    await table.means.pipe.command("HSET", f"{prefix}:unit:0", "until", 1)
    await table.send(batch.batch_id, "0")
    await wait_until(lambda: bool(table.tasks), what="the second run begins")
    await wait_until(counts(table, batch, (8, 1)), what="the second run counts the same nine")
    await consumer.finish(slow, echo(slow))
    outcome = await table.ended(batch)
    assert (outcome.batch.completed, outcome.batch.failed) == (9, 1)


async def test_lines_that_cannot_be_asked_count_at_once(table: Bench, consumer: Consumer) -> None:
    batch = await table.submit(request_line("slow", "text 0") + b"{not json\n" + b"[1]\n")
    await wait_until(counts(table, batch, (0, 2)), what="the bad lines are counted")
    lease = (await consumer.claim(1)).leases[0]
    await consumer.finish(lease, echo(lease))
    assert (await table.ended(batch)).answered == ["slow"]
