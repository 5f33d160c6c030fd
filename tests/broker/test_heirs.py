"""The link between a first pass and its successor, as the scripts keep it (ADR 10)."""

import pytest

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import InvalidJob
from broker.following import follow
from broker.heirs import Plan
from broker.job import Status, heir_id, queue_of
from broker.keys import PoolKeys
from broker.producer import Producer
from broker.scripts import Ending
from broker.stream import Position, ReplyHub
from tests.broker.jobs import POOL, submission

OTHER = "other"
DEADLINE_S, RETAIN_S = 100.0, 20.0


def test_a_plan_is_short_and_says_what_it_was_made_of() -> None:
    plan = Plan(window=16, floor=0.7071, weight=1.5, priority=-1_000_000)
    assert Plan.parse(str(plan)) == plan
    assert len(str(plan)) <= 64, "a longer field makes the job's hash 1.7 times larger"


@pytest.mark.parametrize("text", ["", "1", "1 2 3", "a b c d", "1 2 3 4 5"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob):
        Plan.parse(text)


def test_the_successor_has_the_same_digits_in_another_queue() -> None:
    job = submission()
    assert queue_of(heir_id(job.job_id, "large~3")) == "large~3"
    assert heir_id(job.job_id, "large").partition(".")[0] == job.job_id.partition(".")[0]


async def handed_on(producer: Producer, worker: Consumer) -> tuple[str, str]:
    """Ids of a job that was escalated and of its successor, which waits."""
    job = submission(deadline_s=DEADLINE_S, retain_s=RETAIN_S)
    heir = heir_id(job.job_id, OTHER)
    await producer.submit(submission(job_id=job.job_id, deadline_s=DEADLINE_S, retain_s=RETAIN_S, heir=heir))
    (lease,) = (await worker.claim(1)).leases
    assert lease.heir == heir
    await producer.submit(submission(job_id=heir, deadline_s=DEADLINE_S, base_token=lease.token))
    ending = Ending(False, b"", 3, 2, heir=heir, why="length")
    await worker.finish(lease, ending)
    await worker.finish(lease, ending)  # a repeat changes nothing
    return job.job_id, heir


async def test_the_first_record_outlives_the_successor(
    pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    first, heir = await handed_on(producer, worker)
    left_ms = await pipe.command("PTTL", PoolKeys(POOL).job(first))
    assert left_ms > 1000 * (DEADLINE_S + RETAIN_S) - 5000
    await producer.cancel(heir)


async def test_who_asks_for_the_first_is_told_of_the_successor(producer: Producer, worker: Consumer) -> None:
    first, heir = await handed_on(producer, worker)
    job = await producer.get(first)
    assert (job.job_id, job.status, job.pool) == (heir, Status.QUEUED, OTHER)
    assert job.first is not None
    assert (job.first.job_id, job.first.why, job.first.status) == (first, "length", Status.ESCALATED)
    assert await producer.cancel(first) is Status.CANCELLED
    assert (await producer.get(first)).status is Status.CANCELLED


async def test_a_reader_that_comes_later_is_led_to_the_successors_end(
    pipe: Pipe, hub: ReplyHub, producer: Producer, worker: Consumer
) -> None:
    first, heir = await handed_on(producer, worker)
    await producer.cancel(heir)
    async with hub.watch(first) as box:
        told = [message async for message in follow(pipe, box, after=Position())]
    assert (told[-1].job_id, told[-1].kind, told[-1].status) == (heir, "done", Status.CANCELLED)
    assert box.why == "length"
    assert [message.status for message in told].count(Status.ESCALATED) == 0
