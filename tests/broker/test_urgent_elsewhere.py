"""P0 jobs in queues where a worker is not at home, on a real Redis: they go before lower classes of home, also while it holds room."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import ServiceClass, Submission, new_job_id, queue_of
from broker.keys import PoolKeys
from broker.policy import Asking, Room
from broker.producer import Producer
from broker.served import EVERY, Served
from broker.shards import queues_of
from tests.broker.jobs import LIMITS, Backdoor, end_everything, submission
from tests.conditions import wait_until

FOUR = queues_of("hot", 4)
HOME, ELSEWHERE = FOUR[0], FOUR[2]
TIGHT = Room(slots=2, kv_tokens=100, kv_total_tokens=1000, total_slots=4)


@pytest.fixture(autouse=True)
async def nothing_left(pipe: Pipe) -> AsyncIterator[None]:
    yield
    await end_everything(pipe)


@pytest.fixture
async def worker(pipe: Pipe, redis_url: str) -> AsyncIterator[Consumer]:
    """At home in the first of four."""
    consumer = Consumer(pipe, redis_url, pool=Served(FOUR), asking=Asking("w"), limits=LIMITS)
    yield consumer
    await consumer.close()


def job(queue: str, service_class: ServiceClass = ServiceClass.P0, *, kv_tokens: int = 10) -> Submission:
    forecast = replace(submission().forecast, kv_tokens=kv_tokens)
    return submission(job_id=new_job_id(queue), service_class=service_class, forecast=forecast)


def bulk(jobs: int) -> list[Submission]:
    return [job(HOME, ServiceClass.P2) for _ in range(jobs)]


async def next_queues(worker: Consumer, *, claims: int) -> list[str]:
    return [queue_of(lease.job_id) for _ in range(claims) for lease in (await worker.claim(1)).leases]


async def hold(worker: Consumer, producer: Producer, backdoor: Backdoor, service_class: ServiceClass) -> str:
    """Has the worker hold its room for a job at home."""
    big = job(HOME, service_class, kv_tokens=900)
    await producer.submit(big)
    backdoor.ask("HSET", PoolKeys(HOME).job(big.job_id), "skips", 1000, "since", 1)
    found = await worker.claim(TIGHT)
    assert (found.leases, found.passed) == ([], True)
    return big.job_id


async def test_the_next_claim_is_for_a_p0_job_elsewhere_in_any_round(
    worker: Consumer, producer: Producer
) -> None:
    await producer.submit_many(bulk(3 * EVERY))
    for _ in range(EVERY + 1):
        assert await next_queues(worker, claims=1) == [HOME]
        await producer.submit(job(ELSEWHERE))
        assert await next_queues(worker, claims=1) == [ELSEWHERE]


async def test_p0_jobs_elsewhere_do_not_starve_home(worker: Consumer, producer: Producer) -> None:
    await producer.submit_many([*bulk(4), *(job(ELSEWHERE) for _ in range(3 * EVERY))])
    assert (await next_queues(worker, claims=2 * EVERY)).count(HOME) == 2


async def test_p0_jobs_of_home_go_before_those_elsewhere(worker: Consumer, producer: Producer) -> None:
    await producer.submit_many([job(ELSEWHERE), *bulk(1), job(HOME)])
    assert await next_queues(worker, claims=3) == [HOME, ELSEWHERE, HOME]


async def test_the_p0_job_that_waits_longest_counts_and_its_queue_is_asked_next(
    worker: Consumer, producer: Producer, backdoor: Backdoor
) -> None:
    jobs = {queue: job(queue) for queue in FOUR}
    await producer.submit_many([*jobs.values(), *bulk(1)])
    backdoor.ask("HSET", PoolKeys("hot~3").job(jobs["hot~3"].job_id), "created", 0)
    waited_s = await worker.urgent_s()
    assert waited_s is not None
    assert waited_s > 1e9
    assert await next_queues(worker, claims=1) == ["hot~3"]


async def test_nobody_is_hurried_for_a_paused_queue(
    worker: Consumer, producer: Producer, backdoor: Backdoor
) -> None:
    await producer.submit(job(ELSEWHERE))
    assert await worker.urgent_s() is not None
    backdoor.ask("HSET", PoolKeys(ELSEWHERE).named("stats"), "paused", 1)
    assert await worker.urgent_s() is None


async def test_who_takes_no_p0_jobs_hears_of_none(pipe: Pipe, redis_url: str, producer: Producer) -> None:
    await producer.submit_many([job(ELSEWHERE), *bulk(1)])
    asking = Asking("w", classes=frozenset({ServiceClass.P2}))
    worker = Consumer(pipe, redis_url, pool=Served(FOUR), asking=asking, limits=LIMITS)
    assert await worker.urgent_s() is None
    assert await next_queues(worker, claims=1) == [HOME]
    await worker.close()


async def test_room_that_is_held_for_batch_work_is_open_to_p0_jobs_elsewhere_only(
    worker: Consumer, producer: Producer, backdoor: Backdoor
) -> None:
    held = await hold(worker, producer, backdoor, ServiceClass.P2)
    urgent = job(ELSEWHERE)
    await producer.submit_many([job(ELSEWHERE, ServiceClass.P1), urgent])
    assert [lease.job_id for lease in (await worker.claim(TIGHT)).leases] == [urgent.job_id]
    for _ in range(2 * EVERY):
        assert not (await worker.claim(TIGHT)).leases
    all_free = await worker.claim(Room(slots=2, kv_tokens=1000, kv_total_tokens=1000))
    assert [lease.job_id for lease in all_free.leases] == [held]


async def test_room_that_is_held_at_level_0_is_closed_to_p0_jobs_elsewhere(
    worker: Consumer, producer: Producer, backdoor: Backdoor
) -> None:
    await hold(worker, producer, backdoor, ServiceClass.P0)
    await producer.submit(job(ELSEWHERE))
    await worker.urgent_s()
    for _ in range(2 * EVERY):
        assert not (await worker.claim(TIGHT)).leases


async def test_who_holds_room_is_woken_for_a_p0_job_elsewhere(
    worker: Consumer, producer: Producer, backdoor: Backdoor
) -> None:
    await hold(worker, producer, backdoor, ServiceClass.P2)
    waiting = asyncio.create_task(worker.wait(5.0, for_all=False))
    await wait_until(lambda: b"cmd=bzpopmin" in backdoor.ask("CLIENT", "LIST", "TYPE", "normal"))
    urgent = job(ELSEWHERE)
    await producer.submit(urgent)
    await waiting
    assert backdoor.ask("EXISTS", PoolKeys(ELSEWHERE).named("urgent")) == 0, "its bell was heard"
    assert [lease.job_id for lease in (await worker.claim(TIGHT)).leases] == [urgent.job_id]
