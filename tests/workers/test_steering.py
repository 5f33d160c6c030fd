"""A worker does what its operator wishes: it pauses, goes on, or finishes and leaves."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from broker.job import Status
from broker.keys import PoolKeys
from broker.policy import Limits
from broker.steering import Wish, steer_worker
from tests.conditions import wait_until
from tests.workers.conftest import POOL, Maker, Rig
from tests.workers.scripted import ScriptedEngine, answer
from workers.engine import Delta, EngineCall, Final

KEYS = PoolKeys(POOL)
QUICK = Limits(lease_s=0.3)


class Gated:
    """An engine whose answers wait for a gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.engine = ScriptedEngine(self.answer, slots=2)

    async def answer(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        await self.gate.wait()
        async for item in answer(call):
            yield item


async def known(rig: Rig) -> None:
    """Its first heartbeat has arrived."""
    await wait_until(lambda: rig.pipe.command("EXISTS", KEYS.worker(rig.worker_id)))


async def steer(rig: Rig, wish: Wish) -> None:
    await steer_worker(rig.pipe, [POOL], worker_id=rig.worker_id, wish=wish)


async def test_paused_worker_finishes_what_it_runs_and_claims_nothing_until_it_is_resumed(
    worker: Maker,
) -> None:
    gated = Gated()
    rig = await worker(gated.engine)
    running = await rig.submit()
    await wait_until(lambda: gated.engine.seen == [running])
    await steer(rig, Wish.PAUSE)
    await wait_until(lambda: rig.puller.state == "paused")
    waiting = await rig.submit()
    gated.gate.set()
    assert (await rig.ended(running)).status is Status.SUCCEEDED
    assert (await rig.producer.get(waiting)).status is Status.QUEUED
    await steer(rig, Wish.RESUME)
    assert (await rig.ended(waiting)).status is Status.SUCCEEDED
    assert rig.puller.state == "ready"


async def test_drained_worker_finishes_what_it_runs_leaves_what_waits_and_is_not_to_come_back(
    worker: Maker,
) -> None:
    gated = Gated()
    rig = await worker(gated.engine)
    running = await rig.submit()
    await wait_until(lambda: gated.engine.seen == [running])
    await steer(rig, Wish.DRAIN)
    await wait_until(lambda: rig.puller.state == "draining")
    waiting = await rig.submit()
    assert not rig.running.done()
    gated.gate.set()
    await rig.running
    assert rig.puller.dismissed
    assert (await rig.producer.get(running)).status is Status.SUCCEEDED
    assert (await rig.producer.get(waiting)).status is Status.QUEUED
    await rig.producer.cancel(waiting)


async def test_drained_worker_hands_back_what_does_not_finish_in_time(worker: Maker) -> None:
    gated = Gated()
    rig = await worker(gated.engine, drain_s=0.01)
    running = await rig.submit()
    await wait_until(lambda: gated.engine.seen == [running])
    await steer(rig, Wish.DRAIN)
    await rig.running
    view = await rig.producer.get(running)
    assert (view.status, view.errors, view.deaths) == (Status.QUEUED, 0, 0)
    await rig.producer.cancel(running)


async def test_paused_worker_can_be_drained(worker: Maker) -> None:
    rig = await worker(ScriptedEngine())
    await known(rig)
    await steer(rig, Wish.PAUSE)
    await wait_until(lambda: rig.puller.state == "paused")
    await steer(rig, Wish.DRAIN)
    await rig.running
    assert rig.puller.dismissed


async def test_worker_that_is_stopped_by_a_signal_may_come_back(worker: Maker) -> None:
    rig = await worker(ScriptedEngine())
    rig.puller.drain()
    await rig.running
    assert not rig.puller.dismissed


async def test_wish_is_learned_from_the_next_heartbeat_where_the_call_was_missed(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(), limits=QUICK)
    await known(rig)
    await rig.pipe.command("HSET", KEYS.worker(rig.worker_id), "wish", "pause")
    await wait_until(lambda: rig.puller.state == "paused")


async def test_wish_outlasts_the_record_that_it_is_kept_in(worker: Maker) -> None:
    """The record runs out when Redis is away for longer than a lease."""
    rig = await worker(ScriptedEngine(), limits=QUICK)
    await known(rig)
    await steer(rig, Wish.PAUSE)
    await wait_until(lambda: rig.puller.state == "paused")
    await rig.pipe.command("DEL", KEYS.worker(rig.worker_id))
    await known(rig)
    assert await rig.pipe.command("HGET", KEYS.worker(rig.worker_id), "wish") == b"pause"
    assert rig.puller.state == "paused"


@pytest.mark.parametrize("wish", list(Wish))
async def test_wish_for_one_worker_is_nothing_to_another(worker: Maker, wish: Wish) -> None:
    rig, other = await worker(ScriptedEngine()), await worker(ScriptedEngine())
    await known(rig)
    await known(other)
    await steer(rig, wish)
    job_id = await other.submit()
    assert (await other.ended(job_id)).status is Status.SUCCEEDED
    assert other.puller.state == "ready"
