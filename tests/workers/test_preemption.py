"""Batch work gives way to a P0 job that waits, and goes on after it."""

import asyncio
import time
from collections.abc import AsyncGenerator

from broker.job import ServiceClass, Status
from tests.conditions import wait_until
from tests.workers.conftest import Maker
from tests.workers.scripted import ScriptedEngine, answer
from workers.engine import Delta, EngineCall, Final


async def by_length(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
    """A "long" request never ends by itself; any other is answered at once."""
    if call.body["messages"] == ["long"]:
        await asyncio.Event().wait()
    async for item in answer(call):
        yield item


async def test_batch_work_is_stopped_for_an_urgent_job_and_goes_on_after_it(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(by_length, slots=2))
    long = {"body": b'{"messages":["long"]}', "stream": False}
    batch = await rig.submit(service_class=ServiceClass.P2, **long)
    await wait_until(lambda: rig.engine.seen == [batch])
    background = await rig.submit(service_class=ServiceClass.P3, **long)
    await wait_until(lambda: rig.engine.seen == [batch, background])
    urgent = await rig.submit()
    assert (await rig.ended(urgent)).status is Status.SUCCEEDED
    assert rig.engine.aborted == [background]
    await wait_until(lambda: rig.engine.seen[3:] == [background], what="it is claimed again")
    view = await rig.producer.get(background)
    assert (view.status, view.errors, view.attempts) == (Status.RUNNING, 0, 2)
    for job_id in (batch, background):
        await rig.producer.cancel(job_id)


async def test_no_job_is_stopped_more_often_than_twice(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(by_length, slots=1))
    background = await rig.submit(service_class=ServiceClass.P3, body=b'{"messages":["long"]}', stream=False)
    for _ in range(2):
        await wait_until(
            lambda: rig.engine.seen and rig.engine.seen[-1] == background and rig.puller.ledger.busy
        )
        await rig.ended(await rig.submit())
    await wait_until(lambda: rig.engine.seen.count(background) == 3)
    waiting = await rig.submit()
    await wait_until(lambda: rig.puller.ledger.victim(now=time.monotonic()) is None)
    assert (await rig.producer.get(waiting)).status is Status.QUEUED
    assert rig.puller.preempted == 2
    for job_id in (background, waiting):
        await rig.producer.cancel(job_id)
