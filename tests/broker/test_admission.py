"""What may wait: limits are exact whoever submits, a refusal leaves no trace, and what is ahead of a job is counted.

Numbers are counted by hand from docs/scheduling.md.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import LimitReached, QueueFull, StartTooLate
from broker.job import Accepted, Ahead, Forecast, ServiceClass, Submission
from broker.policy import QueueLimits
from broker.producer import Producer
from broker.scripts import Return
from tests.broker.jobs import ERROR, KEYS, LONG_AGO, Backdoor, submission

P0, P1, P2, P3 = ServiceClass


def limited(pipe: Pipe, limits: QueueLimits) -> Producer:
    return Producer(pipe, limits_of=lambda _: limits)


def of_class(
    service_class: ServiceClass, *, jobs: int | None = None, run_s: float | None = None
) -> QueueLimits:
    at = range(4)
    return QueueLimits(
        None,
        tuple(jobs if c == service_class else None for c in at),
        tuple(run_s if c == service_class else None for c in at),
    )


def lasting(run_s: float, **changes: object) -> Submission:
    return submission(forecast=Forecast(1, 1, run_s), **changes)


async def tried(producer: Producer, job: Submission) -> Accepted | QueueFull:
    try:
        return await producer.submit(job)
    except QueueFull as error:
        return error


@pytest.fixture
async def pipes(redis_url: str) -> AsyncIterator[list[Pipe]]:
    """Of four processes."""
    async with AsyncExitStack() as stack:
        made = [Pipe(redis_url) for _ in range(4)]
        for each in made:
            stack.push_async_callback(each.close)
        yield made


@pytest.mark.parametrize(
    ("limits", "fit"),
    [
        (of_class(P1, jobs=37), 37),
        (of_class(P1, run_s=55.0), 27),
        (QueueLimits(jobs=41), 41),
    ],
)
async def test_limits_are_exact_with_four_producers_at_once(
    pipe: Pipe, pipes: list[Pipe], backdoor: Backdoor, *, limits: QueueLimits, fit: int
) -> None:
    jobs = [[lasting(2.0, service_class=P1) for _ in range(25)] for _ in pipes]
    tries = [
        tried(limited(each, limits), job) for each, some in zip(pipes, jobs, strict=True) for job in some
    ]
    answers = await asyncio.gather(*tries)
    accepted = [answer for answer in answers if isinstance(answer, Accepted)]
    assert len(accepted) == fit
    assert all(isinstance(answer, Accepted | LimitReached) for answer in answers)
    assert sorted(backdoor.members("ready:1")) == sorted(answer.job_id for answer in accepted)
    assert (backdoor.stats()["queued:1"], backdoor.stats()["queued_ms:1"]) == (str(fit), str(2000 * fit))


@pytest.mark.parametrize("bulk", [False, True])
async def test_refusal_writes_nothing(pipe: Pipe, backdoor: Backdoor, *, bulk: bool) -> None:
    producer = limited(pipe, of_class(P1, jobs=3))
    known = lasting(1.0, service_class=P1, reply_to="here")
    await producer.submit(known)
    before = backdoor.snapshot()
    fresh = [lasting(1.0, service_class=P1, weight=1.0, listed=True, reply_to="there") for _ in range(3)]
    with pytest.raises(LimitReached) as refused:
        await (producer.submit_bulk([*fresh, known]) if bulk else producer.submit_many(fresh[:1] * 3 + fresh))
    if bulk:
        assert backdoor.snapshot() == before, "they are refused together, though two would have fitted"
    assert (refused.value.service_class, refused.value.unit, refused.value.most) == ("P1", "jobs", 3)
    assert "P1 jobs wait in the pool 'small', which takes 3" in str(refused.value)


async def test_known_job_is_answered_whatever_the_queue_holds(pipe: Pipe, backdoor: Backdoor) -> None:
    producer = limited(pipe, of_class(P0, jobs=1))
    job = submission()
    await producer.submit(job)
    assert not (await producer.submit(submission(job_id=job.job_id, reply_to="there"))).created
    assert not (await producer.submit_bulk([job, job]))[1].created
    assert backdoor.job(job.job_id)["reply"] == "there"


async def test_job_that_comes_twice_in_a_bulk_is_queued_and_counted_once(
    producer: Producer, backdoor: Backdoor
) -> None:
    job = submission()
    first, second = await producer.submit_bulk([job, job])
    assert first == second
    assert first.created
    assert backdoor.stats()["queued:0"] == backdoor.stats()["enqueued:0"] == "1"


async def test_class_without_predicted_seconds_takes_a_job_of_any_length(pipe: Pipe) -> None:
    producer = limited(pipe, of_class(P2, run_s=10.0))
    await producer.submit(lasting(60.0, service_class=P2))
    with pytest.raises(LimitReached, match="P2 jobs of 60 predicted seconds wait in the pool 'small'"):
        await producer.submit(lasting(0.1, service_class=P2))
    with pytest.raises(LimitReached):
        await limited(pipe, of_class(P3, run_s=10.0)).submit_bulk(
            [lasting(6.0, service_class=P3), lasting(6.0, service_class=P3)]
        )


async def test_full_class_leaves_the_others_alone(pipe: Pipe) -> None:
    producer = limited(pipe, of_class(P2, jobs=1))
    await producer.submit(submission(service_class=P2))
    with pytest.raises(LimitReached):
        await producer.submit(submission(service_class=P2))
    for service_class in (P0, P1, P3):
        assert (await producer.submit(submission(service_class=service_class))).created


async def test_whatever_waits_counts_wherever_it_waits(
    pipe: Pipe, worker: Consumer, backdoor: Backdoor
) -> None:
    """Held, set aside for its tenant's cap, promoted, put off by a retry."""
    producer = limited(pipe, of_class(P1, jobs=5))
    held = lasting(1.0, service_class=P1, hold_s=100.0)
    capped = [lasting(2.0, service_class=P1, tenant="a", tenant_cap=1) for _ in range(2)]
    old, plain = lasting(4.0, service_class=P1), lasting(8.0, service_class=P1)
    await producer.submit_many([*capped, held, old])
    leases = (await worker.claim(3)).leases
    assert len(leases) == 2
    await worker.release(leases[1], Return("error", delay_s=100.0, error=ERROR))
    await producer.submit(plain)
    backdoor.ask("ZADD", KEYS.named("aging"), "XX", LONG_AGO, plain.job_id)
    await worker.claim(0)
    places = ("delayed", "capped:a", "aged:0", "ready:1")
    assert [len(backdoor.members(place)) for place in places] == [2, 1, 1, 0]
    assert (backdoor.stats()["queued:1"], backdoor.stats()["queued_ms:1"]) == (
        "4",
        str(1000 + 2000 + 4000 + 8000),
    )
    await producer.submit(lasting(1.0, service_class=P1))
    with pytest.raises(LimitReached):
        await producer.submit(lasting(1.0, service_class=P1))


@pytest.mark.parametrize("way", ["claim", "cancel", "expire", "reap"])
async def test_there_is_room_again_once_a_job_has_left(
    pipe: Pipe, worker: Consumer, backdoor: Backdoor, *, way: str
) -> None:
    producer, job = limited(pipe, of_class(P0, jobs=1, run_s=1.0)), submission()
    await producer.submit(job)
    if way == "cancel":
        await producer.cancel(job.job_id)
    elif way == "claim":
        await worker.claim(1)
    else:
        backdoor.pass_deadline(job.job_id)
        await (worker.claim(1) if way == "expire" else worker.reap())
    assert (await producer.submit(submission())).created


async def test_redriven_job_waits_again(producer: Producer, worker: Consumer, backdoor: Backdoor) -> None:
    await producer.submit(lasting(3.0, service_class=P2))
    while leases := (await worker.claim(1)).leases:
        await worker.release(leases[0], Return("error", error=ERROR))
    assert (backdoor.stats()["queued:2"], backdoor.stats()["queued_ms:2"]) == ("0", "0")
    [dead] = backdoor.members("dead")
    await producer.redrive(dead)
    assert (backdoor.stats()["queued:2"], backdoor.stats()["queued_ms:2"]) == ("1", "3000")


async def test_position_and_seconds_are_those_of_what_is_claimed_before(producer: Producer) -> None:
    await producer.submit_many([lasting(2.0), lasting(4.0)])
    first = await producer.submit(lasting(5.0, service_class=P1))
    second = await producer.submit(lasting(1.0, service_class=P1, priority=1))
    assert (first.ahead, second.ahead) == (Ahead(2, 6.0), Ahead(3, 6.0 + (5.0 + 1.0) / 2))
    assert await producer.ahead(first.job_id) == Ahead(2, 6.0 + 0.0)
    assert await producer.ahead(second.job_id) == second.ahead


async def test_promoted_jobs_ahead_count_by_their_share(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    """Of the claims at a level they take a fifth while others wait: one before the fifth of those."""
    old = [lasting(10.0, service_class=P1) for _ in range(3)]
    await producer.submit_many([*old, *(lasting(1.0) for _ in range(9))])
    for n, job in enumerate(old):
        backdoor.ask("ZADD", KEYS.named("aging"), "XX", LONG_AGO + n, job.job_id)
    await worker.claim(0)
    for n, job in enumerate(old):
        backdoor.ask("ZADD", KEYS.named("aged:0"), "XX", LONG_AGO + n, job.job_id)
    ninth = await producer.submit(lasting(1.0, priority=1))
    assert ninth.ahead == Ahead(9 + 2, 9 * 1.0 + 2 * 10.0)
    assert await producer.ahead(old[0].job_id) == Ahead(4, 4 * 1.0)
    assert await producer.ahead(old[2].job_id) == Ahead(2 + 10, 2 * 10.0 + 10 * 1.0)


async def test_job_is_refused_if_too_much_is_ahead_of_it(pipe: Pipe, backdoor: Backdoor) -> None:
    producer = Producer(pipe)
    await producer.submit_many([lasting(2.0) for _ in range(10)])
    before = backdoor.snapshot()
    with pytest.raises(StartTooLate) as refused:
        await producer.submit(lasting(2.0, priority=1), most_ahead_s=19.0)
    assert refused.value.ahead_s == 20.0
    assert backdoor.snapshot() == before
    assert (await producer.submit(lasting(2.0, priority=1), most_ahead_s=20.0)).created
    assert (await producer.submit(lasting(2.0, priority=-1), most_ahead_s=1.0)).created, "it goes before them"


async def test_nobody_asks_where_an_attached_job_is(producer: Producer) -> None:
    assert (await producer.submit(submission(attached=True))).ahead is None
