"""Jobs go to the worker with the most room, weighed by its speed; and promoted jobs take their share of time, not only of claims."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import WorkerRecord
from broker.job import Forecast, ServiceClass
from broker.policy import Asking, Room
from broker.producer import Producer
from broker.scripts import Beat, renew
from tests.broker.jobs import KEYS, LIMITS, LONG_AGO, POOL, Backdoor, submission

P0, P1, P2, P3 = ServiceClass


class Workers:
    """Workers by name that the fleet knows, each with so many slots in all."""

    def __init__(self, pipe: Pipe, url: str, stack: AsyncExitStack) -> None:
        self._pipe, self._url, self._stack = pipe, url, stack

    async def join(self, name: str, *, speed: float = 1.0) -> Consumer:
        asking = Asking(name, speed=speed)
        consumer = Consumer(self._pipe, self._url, pool=POOL, asking=asking, limits=LIMITS)
        self._stack.push_async_callback(consumer.close)
        record = WorkerRecord(name, POOL, "e", "m", 8, 0, "ready", 1, "here").dump()
        await self._pipe.run(renew(POOL, Beat(name, record, (), 10.0)))
        return consumer


@pytest.fixture
async def workers(pipe: Pipe, redis_url: str) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack:
        yield Workers(pipe, redis_url, stack)


async def submit(producer: Producer, n: int = 1, **changes: object) -> list[str]:
    jobs = [submission(**changes) for _ in range(n)]
    await producer.submit_many(jobs)
    return [job.job_id for job in jobs]


async def taken(worker: Consumer, free: int, *, of: int = 8) -> int:
    return len((await worker.claim(Room(free, total_slots=of))).leases)


async def test_burst_is_spread_over_workers_that_have_room(workers: Workers, producer: Producer) -> None:
    one, two = await workers.join("w1"), await workers.join("w2")
    assert await taken(one, 8) + await taken(two, 8) == 0
    await submit(producer, 8)
    first = await taken(one, 8)
    second = await taken(two, 8)
    third = await taken(one, 8 - first)
    assert first + second + third == 8
    assert abs(second - (first + third)) <= 2


async def test_job_is_left_to_the_worker_with_more_room_which_is_woken(
    workers: Workers, producer: Producer, backdoor: Backdoor
) -> None:
    busy, idle = await workers.join("busy"), await workers.join("idle")
    await taken(idle, 8)
    await submit(producer)
    left = await busy.claim(Room(2, total_slots=8))
    assert (left.leases, left.passed) == ([], True)
    assert left.next_due_s is not None
    assert left.next_due_s <= 0.02
    assert backdoor.members("marker:idle") == ["work"]
    assert await taken(idle, 8) == 1


async def test_slow_worker_leaves_jobs_to_a_fast_one_until_that_has_half_as_much_room(
    workers: Workers, producer: Producer
) -> None:
    slow, fast = await workers.join("slow", speed=0.5), await workers.join("fast")
    await taken(fast, 8)
    await submit(producer)
    assert await taken(slow, 8) == 0
    assert await taken(fast, 8) == 1
    await submit(producer)
    assert await taken(fast, 4) == 1
    await submit(producer)
    assert await taken(slow, 8) == 1


@pytest.mark.parametrize("gone", ["waited", "dead", "withdrew", "full"])
async def test_job_is_left_to_nobody_who_will_not_take_it(
    workers: Workers, producer: Producer, backdoor: Backdoor, gone: str
) -> None:
    busy, idle = await workers.join("busy"), await workers.join("idle")
    await taken(idle, 8)
    [job_id] = await submit(producer)
    if gone == "waited":
        backdoor.ask("HSET", KEYS.job(job_id), "created", LONG_AGO)
    elif gone == "dead":
        backdoor.ask("ZADD", KEYS.named("workers"), "XX", LONG_AGO, "idle")
    elif gone == "withdrew":
        await idle.withdraw()
    else:
        await submit(producer)
        assert await taken(idle, 1) == 1
    assert await taken(busy, 1) == 1


async def test_many_waiting_jobs_fill_whoever_asks(workers: Workers, producer: Producer) -> None:
    one, two = await workers.join("w1"), await workers.join("w2")
    await taken(two, 8)
    await submit(producer, 64)
    assert await taken(one, 8) == 8


async def test_warm_prefix_does_not_pile_work_on_one_worker_while_another_is_idle(
    workers: Workers, producer: Producer, backdoor: Backdoor
) -> None:
    warm, idle = await workers.join("warm"), await workers.join("idle")
    await submit(producer, prefix="aa")
    assert await taken(warm, 8) == 1
    await taken(warm, 1)  # it has become busy
    await submit(producer, prefix="aa")
    assert await taken(idle, 8) == 1
    assert backdoor.stats()["stolen:0"] == "1"


@pytest.mark.parametrize(("long_s", "expected"), [(1.0, 20), (4.0, 5)])
async def test_promoted_jobs_take_their_share_of_claims_and_of_seconds(
    producer: Producer, worker: Consumer, backdoor: Backdoor, long_s: float, expected: int
) -> None:
    """Of 100 claims 20 go to promoted jobs that are as long as the others, 5 to ones that are four times as long."""
    old = await submit(producer, 40, service_class=P1, forecast=Forecast(1, 1, long_s))
    for job_id in old:
        backdoor.ask("ZADD", KEYS.named("aging"), "XX", LONG_AGO, job_id)
    await worker.claim(0)
    await worker.claim(0)
    assert len(backdoor.members("aged:0")) == 40
    await submit(producer, 110, service_class=P0, forecast=Forecast(1, 1, 1.0))
    leases = [lease for _ in range(50) for lease in (await worker.claim(2)).leases]
    promoted = sum(lease.service_class is P1 for lease in leases)
    assert len(leases) == 100
    assert abs(promoted - expected) <= 1
