"""Workers that take some classes only: what they leave alone, and what is not left to them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import ServiceClass
from broker.policy import Asking, Room
from broker.producer import Producer
from broker.scripts import Beat, renew
from tests.broker.jobs import KEYS, LIMITS, POOL, Backdoor, submission

BULK = frozenset({ServiceClass.P2, ServiceClass.P3})


@asynccontextmanager
async def member(pipe: Pipe, url: str, asking: Asking) -> AsyncIterator[Consumer]:
    consumer = Consumer(pipe, url, pool=POOL, asking=asking, limits=LIMITS)
    yield consumer
    await consumer.close()


async def test_a_worker_takes_only_its_classes(pipe: Pipe, redis_url: str, producer: Producer) -> None:
    jobs = [submission(service_class=ServiceClass(c)) for c in (0, 1, 2, 3)]
    await producer.submit_many(jobs)
    asking = Asking("bulk", classes=BULK)
    async with member(pipe, redis_url, asking) as worker:
        found = await worker.claim(4)
        assert [lease.job_id for lease in found.leases] == [jobs[2].job_id, jobs[3].job_id]
        assert (found.more, found.passed) == (False, True)


async def test_no_job_is_left_to_a_worker_that_does_not_take_its_class(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    """It is idle and has the job's prefix, which would make it better placed."""
    bulk, chat = Asking("bulk", classes=BULK), Asking("chat")
    async with (
        member(pipe, redis_url, bulk) as one,
        member(pipe, redis_url, chat) as other,
    ):
        await pipe.run(renew(POOL, Beat("bulk", b"{}", (), 10.0)))
        await producer.submit(submission(service_class=ServiceClass.P2, prefix="aa,bb"))
        assert len((await one.claim(4)).leases) == 1
        await one.claim(4)
        first = submission(prefix="aa,bb")
        await producer.submit_many([first, submission(service_class=ServiceClass.P2, prefix="aa,bb")])
        found = await other.claim(Room(slots=1, total_slots=4))
        assert [lease.job_id for lease in found.leases] == [first.job_id]
        left = await other.claim(Room(slots=1, total_slots=4))
        assert (left.leases, left.passed) == ([], True), "the other one is for the worker with the prefix"


async def test_a_worker_that_does_not_take_what_waits_is_not_to_ask_again_and_wakes_another(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    marker = KEYS.named("marker")
    await producer.submit_many([submission() for _ in range(50)])
    asking = Asking("bulk", classes=BULK)
    async with member(pipe, redis_url, asking) as worker:
        await worker.wait(5.0)
        assert backdoor.ask("EXISTS", marker) == 0
        found = await worker.claim(4)
        assert (found.leases, found.more, found.passed) == ([], False, True)
        assert backdoor.ask("EXISTS", marker) == 1
        await worker.wait(0.01, for_all=False)
        assert backdoor.ask("EXISTS", KEYS.named("urgent")) == 1  # left to those who take P0


async def test_promoted_jobs_of_other_classes_are_left_too(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    old, new = submission(service_class=ServiceClass.P3), submission(service_class=ServiceClass.P2)
    await producer.submit_many([old, new])
    backdoor.ask("ZADD", KEYS.named("aging"), "XX", 1, old.job_id)
    asking = Asking("p2", classes=frozenset({ServiceClass.P2}))
    async with member(pipe, redis_url, asking) as worker:
        found = await worker.claim(4)
        assert [lease.job_id for lease in found.leases] == [new.job_id]
        assert found.passed
