"""Jobs of a pool that is out are handed on to its fallback: those that may be, once, with their mark."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import WorkerRecord, announce_pool
from broker.heirs import Heirs
from broker.job import Status, Submission, new_job_id
from broker.keys import PoolKeys
from broker.policy import Asking, Room
from broker.producer import Producer
from broker.rescue import POOL_OUT, Rescuer, rescue_id
from broker.scripts import Beat, Ending
from broker.shards import Shards
from predictor.estimator import SimpleEstimator
from tests.broker.jobs import LIMITS, POOL, Backdoor, end_everything, submission

LARGE = "large"
SHARDS = Shards({})
RECORD = WorkerRecord("w1", POOL, "x", "m", 4, 0, "ready", 1, "here")


@pytest.fixture
async def rescuer(pipe: Pipe, producer: Producer, redis_url: str) -> AsyncIterator[Rescuer]:
    """Of a fleet in which one worker serves the small pool."""
    await announce_pool(pipe, POOL)
    await announce_pool(pipe, LARGE)
    await pipe.run(scripts.renew(POOL, Beat("w1", RECORD.dump(), (), 60.0)))
    heirs = Heirs(pipe, producer, forecast=SimpleEstimator().forecast)
    yield Rescuer(pipe, redis_url, heirs=heirs, asking=Asking("rescuer"), weight_of=lambda _: 0.0)
    await end_everything(pipe)


def job(**changes: object) -> Submission:
    values: dict[str, object] = {"job_id": new_job_id(LARGE), "rescuable": True, "body": b'{"prompt":"hi"}'}
    return submission(**values | changes)


async def go(rescuer: Rescuer, pipe: Pipe, most: int = 10) -> int:
    await pipe.command("DEL", PoolKeys(LARGE).named("rescued"))
    return await rescuer.rescue(LARGE, to=POOL, shards=SHARDS, most=most)


async def test_job_is_handed_on_with_its_mark_and_answered_once(
    rescuer: Rescuer, pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    await producer.submit(first := job(deadline_s=100.0, metadata=b'{"metadata":{}}'))
    assert await go(rescuer, pipe) == 1
    [lease] = (await worker.claim(4)).leases
    assert lease.job_id == rescue_id(first.job_id, POOL, shards=SHARDS)
    await worker.finish(lease, Ending(succeeded=True, data=b'{"a":1}'))
    view = await producer.get(first.job_id)
    assert (view.status, view.result, view.route) == (Status.SUCCEEDED, b'{"a":1}', "small degraded:large")
    assert view.first is not None
    assert (view.first.job_id, view.first.why) == (first.job_id, POOL_OUT)
    assert await go(rescuer, pipe) == 0
    assert int(await pipe.command("HGET", PoolKeys(LARGE).named("stats"), "rescued")) == 1


async def test_only_jobs_that_may_go_are_taken(rescuer: Rescuer, pipe: Pipe, producer: Producer) -> None:
    stays, goes = job(rescuable=False), job()
    for each in (stays, goes):
        await producer.submit(each)
    assert await go(rescuer, pipe) == 1
    view = await producer.get(stays.job_id)
    assert (view.status, view.pool, view.attempts) == (Status.QUEUED, LARGE, 0)


async def test_no_more_than_so_many_at_once_and_one_process_at_a_time(
    rescuer: Rescuer, pipe: Pipe, producer: Producer
) -> None:
    for _ in range(5):
        await producer.submit(job())
    assert await go(rescuer, pipe, most=3) == 3
    assert await rescuer.rescue(LARGE, to=POOL, shards=SHARDS, most=3) == 0, "it has just been done"
    assert await go(rescuer, pipe, most=3) == 2


async def test_where_nobody_would_take_it_the_job_waits_in_its_pool(
    rescuer: Rescuer, pipe: Pipe, producer: Producer
) -> None:
    await producer.submit(first := job())
    await pipe.command("DEL", PoolKeys(POOL).worker("w1"))
    assert await go(rescuer, pipe) == 0
    view = await producer.get(first.job_id)
    assert (view.status, view.pool, view.errors, view.route) == (Status.QUEUED, LARGE, 0, "")


async def test_rescuer_that_dies_between_its_two_steps_makes_no_second_job(
    rescuer: Rescuer, pipe: Pipe, producer: Producer, backdoor: Backdoor
) -> None:
    await producer.submit(first := job())
    heir = rescue_id(first.job_id, POOL, shards=SHARDS)
    await producer.submit(replace(first, job_id=heir, rescuable=False))
    large = PoolKeys(LARGE)
    await pipe.run(scripts.claim(LARGE, Asking("dead", rescues=True), room=Room(1)))
    backdoor.ask("ZADD", large.named("leases"), "XX", 1, first.job_id)
    await pipe.run(scripts.reap(LARGE, LIMITS))
    assert await go(rescuer, pipe) == 1
    assert await pipe.command("ZCARD", PoolKeys(POOL).ready(0)) == 1
    assert (await producer.get(first.job_id)).job_id == heir


async def test_cancelling_the_job_cancels_the_one_that_has_its_place(
    rescuer: Rescuer, pipe: Pipe, producer: Producer
) -> None:
    await producer.submit(first := job())
    await go(rescuer, pipe)
    assert await producer.cancel(first.job_id) is Status.CANCELLED
    assert (await producer.get(rescue_id(first.job_id, POOL, shards=SHARDS))).status is Status.CANCELLED


async def test_rescuer_is_no_worker_to_whom_jobs_are_left(
    rescuer: Rescuer, pipe: Pipe, producer: Producer
) -> None:
    await producer.submit(job(prefix="a1,b2"))
    await go(rescuer, pipe)
    large = PoolKeys(LARGE)
    assert not await pipe.command("ZCARD", large.named("spare"))
    assert not await pipe.command("EXISTS", large.named("takes:rescuer"))
