"""Jobs of a pool that is out are handed on to its fallback: those that may be, once, with their mark."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import WorkerRecord, announce_pool
from broker.heirs import Heirs, Plan
from broker.job import ServiceClass, Status, Submission, heir_id, new_job_id
from broker.keys import PoolKeys
from broker.policy import Asking, Limits, Room
from broker.producer import Producer
from broker.rescue import POOL_OUT, Rescuer, rescue_id
from broker.scripts import Beat, Ending, Return
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


async def escalated(pipe: Pipe, producer: Producer, worker: Consumer, *, deaths: int = 0) -> str:
    """The id of a job of the small pool that the large one has got, of which then no worker is left."""
    job_id = new_job_id(POOL)
    first = job(job_id=job_id, heir=heir_id(job_id, LARGE), plan=str(Plan()), route="by auto", choices=2)
    await producer.submit(replace(first, attached=True, resets=True))
    await pipe.command("HSET", PoolKeys(POOL).job(job_id), "deaths", deaths)
    await pipe.run(scripts.renew(LARGE, Beat("w2", RECORD.dump(), (), 60.0)))
    [lease] = (await worker.claim(1)).leases
    assert await Heirs(pipe, producer, forecast=SimpleEstimator().forecast).submit(lease, {}, in_time=True)
    await worker.finish(lease, Ending(False, b"", 3, 2, heir=lease.heir, why="length"))
    await pipe.command("DEL", PoolKeys(LARGE).worker("w2"))
    return job_id


async def test_an_escalated_job_whose_pool_goes_out_is_answered_by_the_fallback_and_tells_of_all_passes(
    rescuer: Rescuer, pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    job_id = await escalated(pipe, producer, worker)
    assert await go(rescuer, pipe) == 1
    [lease] = (await worker.claim(4)).leases
    kept = await pipe.command(
        "HMGET", PoolKeys(POOL).job(lease.job_id), "attached", "slots", "origin", "fall"
    )
    assert kept == [b"2", b"2", job_id.encode(), None]
    assert lease.heir == "", "its answer is judged by nobody"
    await worker.finish(lease, Ending(succeeded=True, data=b'{"a":1}'))
    view = await producer.get(job_id)
    assert (view.status, view.result, view.route) == (Status.SUCCEEDED, b'{"a":1}', "by auto degraded:large")
    assert [(each.pool, each.why) for each in view.passes] == [
        (POOL, "length"),
        (LARGE, POOL_OUT),
        (POOL, ""),
    ]
    assert view.first is not None
    assert view.first.job_id == job_id
    found = await producer.whole(await producer.get(view.job_id))
    assert [each.job_id for each in found.passes] == [each.job_id for each in view.passes]


async def test_a_job_that_workers_died_of_is_not_brought_back_to_them(
    rescuer: Rescuer, pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    job_id = await escalated(pipe, producer, worker, deaths=Limits().max_deaths)
    assert await go(rescuer, pipe) == 0
    assert (await producer.get(job_id)).status is Status.QUEUED


async def test_a_redriven_job_may_be_rescued_as_the_dead_one_and_is_under_its_tenants_cap(
    rescuer: Rescuer, pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    shared = {"service_class": ServiceClass.P1, "tenant": "acme", "tenant_cap": 1, "route": "by auto"}
    await producer.submit(
        job(job_id=new_job_id(POOL), heir=heir_id(new_job_id(POOL), LARGE), plan="", **shared)
    )
    [lease] = (await worker.claim(4)).leases
    while await worker.release(lease, Return("error", error=b"{}")):
        [lease] = (await worker.claim(4)).leases
    again = await producer.redrive(lease.job_id)
    names = ("cap", "fall", "route", "heir", "plan", "attached")
    kept = await pipe.command("HMGET", PoolKeys(POOL).job(again), *names)
    assert kept == [b"1", b"1", b"by auto", None, None, b"0"]
    await producer.submit(job(job_id=new_job_id(POOL), **shared))
    assert len((await worker.claim(4)).leases) == 1, "the tenant may run one"
