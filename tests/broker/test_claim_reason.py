"""Why a worker took a job, as a claim notes it beside the worker's name (lua/_take.lua)."""

import pytest

from broker import scripts
from broker.connection import Pipe
from broker.job import ServiceClass
from broker.policy import Aging, Asking, Order, Room
from broker.producer import Producer
from tests.broker.jobs import LIMITS, POOL, submission
from tests.conditions import wait_until

CHAIN = "aaaa1111,bbbb2222"


async def claimed(pipe: Pipe, worker: str, *, away: int = 0, aging: Aging | None = None) -> list[str]:
    """The ids that it leases."""
    asking = Asking(worker, LIMITS.lease_s, aging or Aging())
    rows = (await pipe.run(scripts.claim(POOL, asking, room=Room(4), away=away)))[2:]
    return [row[0].decode() for row in rows]


async def reason(producer: Producer, job_id: str) -> str:
    return (await producer.get(job_id)).claim


@pytest.mark.parametrize(("away", "letter"), [(0, "h"), (1, "s"), (2, "e")])
async def test_the_queue_that_it_came_from(pipe: Pipe, producer: Producer, *, away: int, letter: str) -> None:
    job = submission()
    await producer.submit(job)
    assert await claimed(pipe, "w1", away=away) == [job.job_id]
    assert await reason(producer, job.job_id) == letter


async def test_a_promotion(pipe: Pipe) -> None:
    aging = Aging((0.0, 0.001, 0.001, 0.001))
    producer, job = Producer(pipe, Order(aging=aging)), submission(service_class=ServiceClass.P1)
    await producer.submit(job)
    await wait_until(lambda: pipe.run(scripts.reap(POOL, LIMITS, every_s=0.001)))

    async def took() -> list[str]:
        return await claimed(pipe, "w1", aging=aging)

    assert await wait_until(took) == [job.job_id]
    seen = await producer.get(job.job_id)
    assert (seen.claim, seen.level) == ("ha", 0)
    assert seen.promoted is not None


async def test_whose_engine_has_its_prefix_and_how_much_of_it(pipe: Pipe, producer: Producer) -> None:
    await pipe.run(scripts.renew(POOL, scripts.Beat("w1", b"{}", (), 60.0)))
    first, second, third = (submission(prefix=CHAIN) for _ in range(3))
    await producer.submit(first)
    assert await claimed(pipe, "w1") == [first.job_id]
    await producer.submit(second)
    assert await claimed(pipe, "w1") == [second.job_id]
    await producer.submit(third)

    async def stolen() -> list[str]:
        return await claimed(pipe, "w2")

    assert await wait_until(stolen, what="the patience with w1 to end") == [third.job_id]
    assert [await reason(producer, job.job_id) for job in (first, second, third)] == ["h", "hw2", "hm2"]
