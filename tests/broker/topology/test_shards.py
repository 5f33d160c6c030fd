"""A pool of several queues on each kind of Redis: in a cluster they are in different slots, on different servers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from broker.consumer import Consumer
from broker.fleet import look_at
from broker.job import Lease, Status, Submission, new_job_id
from broker.keys import PoolKeys
from broker.policy import Asking
from broker.scripts import Ending
from broker.served import Served, home_first
from broker.shards import queues_of
from broker.topology import slot_of
from tests.broker.topology.conftest import LIMITS, Queue
from tests.conditions import wait_until
from workers.control import hear_aborts
from workers.heartbeat import Heartbeat

SHARDS = 6
DONE = Ending(succeeded=True, data=b"{}")


def shards_of(queue: Queue) -> tuple[str, ...]:
    return queues_of(queue.pool, SHARDS)


def job_in(queue: Queue, name: str) -> Submission:
    job_id = new_job_id(name)
    return replace(queue.submission(), job_id=job_id, reply_to=queue.hub.address(job_id))


@asynccontextmanager
async def at_home(queue: Queue, home: str) -> AsyncIterator[Consumer]:
    served = Served(home_first(shards_of(queue), home))
    worker = Consumer(queue.pipe, queue.place.url, pool=served, asking=Asking("w1"), limits=LIMITS)
    yield worker
    await worker.close()


async def next_lease(worker: Consumer) -> Lease:
    """As a waiting worker gets it."""
    async with asyncio.timeout(30):
        while not (leases := (await worker.claim(1)).leases):
            await worker.wait(5.0)
    return leases[0]


@pytest.fixture(autouse=True)
async def nothing_left(queue: Queue) -> AsyncIterator[None]:
    yield
    for name in shards_of(queue):
        for job_id in await queue.pipe.command("ZRANGE", PoolKeys(name).named("deadlines"), 0, -1):
            await queue.producer.cancel(job_id.decode())


@pytest.mark.places("cluster", "cluster-8", "cluster-6.2")
async def test_shards_are_in_slots_of_their_own_on_all_masters(queue: Queue) -> None:
    slots = {slot_of(PoolKeys(name).prefix) for name in shards_of(queue)}
    assert len(slots) == SHARDS
    await queue.producer.submit_many([job_in(queue, name) for name in shards_of(queue) for _ in range(2)])
    prefixes = tuple(PoolKeys(name).prefix for name in shards_of(queue))
    for node in queue.place.masters():
        assert any(key.startswith(prefixes) for key in node.ask("KEYS", "hw:*")), "no shard on this server"
    async with at_home(queue, shards_of(queue)[0]) as worker:
        for _ in range(2 * SHARDS):
            await worker.finish(await next_lease(worker), DONE)


async def test_a_worker_steals_from_every_shard(queue: Queue) -> None:
    jobs = [job_in(queue, name) for name in shards_of(queue)]
    await queue.producer.submit_many(jobs)
    async with at_home(queue, shards_of(queue)[2]) as worker:
        leases = [await next_lease(worker) for _ in jobs]
        assert leases[0].job_id == jobs[2].job_id
        assert {lease.job_id for lease in leases} == {job.job_id for job in jobs}
        assert await worker.finish_many([(lease, DONE) for lease in leases]) == [True] * SHARDS
    seen = await look_at(queue.pipe, queue.pool, queues=shards_of(queue))
    assert (seen.counters["succeeded:0"], seen.counters["stolen_shard"]) == (SHARDS, SHARDS - 1)


async def test_a_waiting_worker_comes_to_a_job_of_another_shard(queue: Queue) -> None:
    async with at_home(queue, shards_of(queue)[0]) as worker:
        waiting = asyncio.create_task(next_lease(worker))
        job = job_in(queue, shards_of(queue)[1])
        await queue.producer.submit(job)
        lease = await waiting
        assert lease.job_id == job.job_id
        await worker.finish(lease, DONE)
    assert (await queue.producer.get(job.job_id)).status is Status.SUCCEEDED


async def test_leases_of_all_shards_are_renewed(queue: Queue) -> None:
    heartbeat = Heartbeat(queue.place.url, pool=Served(shards_of(queue)), worker_id="w1", lease_s=30)
    await queue.producer.submit_many([job_in(queue, name) for name in shards_of(queue)])
    async with at_home(queue, shards_of(queue)[0]) as worker:
        leases = [await next_lease(worker) for _ in shards_of(queue)]
        gone, *kept = leases
        await queue.producer.cancel(gone.job_id)
        lost: list[str] = []
        heartbeat.hold(leases, time.monotonic() - 29)
        heartbeat.start(lambda: b"{}", lost.extend)
        soon = time.monotonic() + 20
        await wait_until(lambda: all(heartbeat.trusted_until(lease.job_id) > soon for lease in kept))
        await wait_until(lambda: lost == [gone.job_id])
        await worker.finish_many([(lease, DONE) for lease in kept])
    await asyncio.to_thread(heartbeat.stop)


async def test_aborts_are_heard_from_all_shards(queue: Queue) -> None:
    served, aborted = Served(shards_of(queue)), set[str]()
    hearing = asyncio.create_task(
        hear_aborts(queue.place.url, served, on_abort=lambda job_id, _: aborted.add(job_id))
    )

    async def cancelled_and_heard(name: str) -> bool:
        job = job_in(queue, name)
        await queue.producer.submit(job)
        async with at_home(queue, name) as worker:
            await next_lease(worker)
        await queue.producer.cancel(job.job_id)
        return job.job_id in aborted

    for name in shards_of(queue):
        await wait_until(partial(cancelled_and_heard, name))  # until it has subscribed, nobody hears
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
