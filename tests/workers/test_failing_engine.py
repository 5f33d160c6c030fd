"""A worker whose engine fails is taken out by its breaker, and comes back by itself when the engine is well."""

from collections.abc import AsyncGenerator

from broker.fleet import look
from broker.job import Status
from broker.policy import Breaker, Limits
from tests.conditions import wait_until
from tests.workers.conftest import POOL, Maker, Rig
from tests.workers.scripted import ScriptedEngine, answer
from workers.engine import Delta, EngineCall, EngineFailed, EngineRejected, Final

QUICK = Limits(max_errors=50, breaker=Breaker(share=0.1, requests=4, window_s=60.0, open_s=0.05, probes=2))


async def fails(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
    raise EngineFailed("CUDA error")
    yield Final(b"", None, None)


async def refuses(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
    raise EngineRejected(400, b'{"error":{"message":"bad"}}')
    yield Final(b"", None, None)


async def event(rig: Rig, name: str) -> float:
    return (await look(rig.pipe, POOL)).counters.get(f"breaker:{name}", 0.0)


async def test_worker_is_out_while_its_engine_fails_and_every_job_is_answered_in_the_end(
    worker: Maker,
) -> None:
    rig = await worker(ScriptedEngine(fails), limits=QUICK)
    jobs = [await rig.submit() for _ in range(6)]

    async def opened() -> bool:
        return await event(rig, "opened") >= 2  # a probe has failed, too

    await wait_until(opened)
    rig.engine.script = answer
    for job_id in jobs:
        assert (await rig.ended(job_id)).status is Status.SUCCEEDED
    assert await event(rig, "closed") == 1
    assert rig.engine.most_at_once <= 4


async def test_another_worker_takes_over_at_once(worker: Maker) -> None:
    sick = await worker(ScriptedEngine(fails), limits=QUICK)
    for _ in range(4):
        await sick.submit()

    async def opened() -> bool:
        return await event(sick, "opened") >= 1

    await wait_until(opened)
    well = await worker(ScriptedEngine(), limits=QUICK)
    job_id = await sick.submit()
    assert (await sick.ended(job_id)).status is Status.SUCCEEDED
    assert well.engine.seen


async def test_one_bad_client_takes_nobody_out(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(refuses), limits=QUICK)
    for job_id in [await rig.submit() for _ in range(20)]:
        assert (await rig.ended(job_id)).status is Status.FAILED
    assert await event(rig, "opened") == 0
