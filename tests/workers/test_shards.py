"""Workers of several queues as they run: jobs of all of them are done, kept, aborted and preempted for as at home."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from broker.connection import Pipe
from broker.fleet import look_at
from broker.job import Forecast, ServiceClass, Status, new_job_id, pool_of, queue_of
from broker.keys import PoolKeys
from broker.served import home_first
from broker.shards import queues_of
from tests.broker.jobs import end_everything
from tests.conditions import wait_until
from tests.workers.conftest import Maker
from tests.workers.scripted import ScriptedEngine, answer, payload
from workers.capacity import Plan
from workers.engine import Delta, EngineCall, Final

THREE = queues_of("hot", 3)
BULK = frozenset({ServiceClass.P2, ServiceClass.P3})


@pytest.fixture(autouse=True)
async def nothing_left(redis_url: str) -> AsyncIterator[None]:
    yield
    pipe = Pipe(redis_url)
    await end_everything(pipe)
    await pipe.close()


async def forever(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
    yield Delta(payload("begun "), 1)
    await asyncio.Event().wait()


async def test_jobs_of_all_shards_are_done_by_workers_of_any_home(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(slots=2), queues=home_first(THREE, "hot~1"))
    ids = [await rig.submit(job_id=new_job_id(queue)) for queue in THREE * 4]
    ended = [await rig.ended(job_id) for job_id in ids]
    assert {view.status for view in ended} == {Status.SUCCEEDED}
    assert {view.pool for view in ended} == {"hot"}
    seen = await look_at(rig.pipe, "hot", queues=THREE)
    assert (seen.counters["succeeded:0"], seen.counters["stolen_shard"]) == (12, 8)


async def test_idle_workers_share_what_comes_to_one_shard(worker: Maker) -> None:
    """Both homes are elsewhere; each has one slot and keeps its job."""
    rigs = [
        await worker(ScriptedEngine(forever, slots=1), queues=home_first(THREE, home)) for home in THREE[:2]
    ]
    for _ in rigs:
        await rigs[0].submit(job_id=new_job_id("hot~2"))
    await wait_until(lambda: [len(rig.engine.seen) for rig in rigs] == [1, 1])


async def test_a_worker_is_known_in_all_its_queues_and_counted_once(worker: Maker) -> None:
    rigs = [await worker(ScriptedEngine(), queues=home_first(THREE, home)) for home in THREE]

    async def registered() -> bool:
        counts = [await rigs[0].pipe.command("ZCARD", PoolKeys(queue).named("workers")) for queue in THREE]
        return counts == [3, 3, 3]

    await wait_until(registered)
    seen = await look_at(rigs[0].pipe, "hot", queues=THREE)
    assert (len(seen.workers), seen.slots) == (3, 12)
    assert {one.home for one in seen.workers} == set(THREE)


async def test_the_lease_of_a_stolen_job_is_renewed(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever), queues=THREE)
    job_id = await rig.submit(job_id=new_job_id("hot~2"))
    await wait_until(lambda: rig.engine.seen == [job_id])
    leases = PoolKeys("hot~2").named("leases")
    await rig.pipe.command("ZADD", leases, "XX", 1, job_id)
    rig.heartbeat.beat_soon()

    async def renewed() -> bool:
        return float(await rig.pipe.command("ZSCORE", leases, job_id)) > 1

    await wait_until(renewed)


async def test_cancelling_a_stolen_job_aborts_it_in_the_engine(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever), queues=THREE)
    job_id = await rig.submit(job_id=new_job_id("hot~2"))
    await wait_until(lambda: rig.engine.seen == [job_id])
    assert await rig.producer.cancel(job_id) is Status.CANCELLED
    await wait_until(lambda: rig.engine.aborted == [job_id])


async def test_batch_work_gives_way_to_a_p0_job_of_another_shard(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever, slots=1), queues=THREE)
    bulk = [await rig.submit(job_id=new_job_id("hot~0"), service_class=ServiceClass.P2) for _ in range(3)]
    await wait_until(lambda: rig.engine.seen == bulk[:1])
    urgent = await rig.submit(job_id=new_job_id("hot~1"))
    await wait_until(lambda: rig.engine.seen == [bulk[0], urgent], what="it runs before what waits at home")
    assert rig.puller.preempted == 1


async def test_with_full_slots_batch_work_gives_way_to_each_p0_job_of_any_shard(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever, slots=2), queues=THREE)
    bulk = [await rig.submit(job_id=new_job_id("hot~0"), service_class=ServiceClass.P2) for _ in range(6)]
    await wait_until(lambda: len(rig.engine.seen) == 2)
    urgent = [await rig.submit(job_id=new_job_id(queue)) for queue in ("hot~1", "hot~2")]
    await wait_until(lambda: set(urgent) <= set(rig.engine.seen))
    assert set(rig.engine.seen) == {*bulk[:2], *urgent}
    assert rig.puller.preempted == 2


@pytest.mark.parametrize("skips", [0, 1000], ids=["passed over", "room is held"])
async def test_with_a_full_cache_batch_work_gives_way_to_a_p0_job_of_another_shard(
    worker: Maker, skips: int
) -> None:
    """The cache takes one of these jobs; slots are free. A job that was passed over often has room held for it."""
    plan = Plan(4, kv_tokens=1000, preempt_after_s=0.01)
    rig = await worker(ScriptedEngine(forever, slots=4), queues=THREE, plan=plan)
    large = Forecast(500, 400, 0.1, kv_tokens=900)

    async def submit(queue: str, service_class: ServiceClass) -> str:
        return await rig.submit(job_id=new_job_id(queue), service_class=service_class, forecast=large)

    first = await submit("hot~0", ServiceClass.P2)
    await wait_until(lambda: rig.engine.seen == [first])
    waiting = await submit("hot~0", ServiceClass.P2)
    await rig.pipe.command("HSET", PoolKeys("hot~0").job(waiting), "skips", skips, "since", 1)
    urgent = await submit("hot~1", ServiceClass.P0)
    await wait_until(lambda: urgent in rig.engine.seen)
    assert rig.engine.seen == [first, urgent]
    assert (await rig.producer.get(waiting)).status is Status.QUEUED


async def test_one_worker_serves_several_pools(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(), queues=("chat", "embed"))
    ids = [await rig.submit(job_id=new_job_id(pool)) for pool in ("embed", "chat", "embed")]
    assert {(await rig.ended(job_id)).status for job_id in ids} == {Status.SUCCEEDED}
    assert {pool_of(job_id) for job_id in rig.engine.seen} == {"chat", "embed"}


async def test_classes_are_taken_by_those_workers_only_that_take_them(worker: Maker) -> None:
    bulk = await worker(ScriptedEngine(), classes=BULK)
    waiting = await bulk.submit()
    assert (await bulk.ended(await bulk.submit(service_class=ServiceClass.P2))).status is Status.SUCCEEDED
    assert waiting not in bulk.engine.seen
    chat = await worker(ScriptedEngine(answer), classes=frozenset({ServiceClass.P0, ServiceClass.P1}))
    assert (await chat.ended(waiting)).status is Status.SUCCEEDED
    assert chat.engine.seen == [waiting]
    assert queue_of(waiting) == "small"
