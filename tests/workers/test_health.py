"""An engine that does not say three times that it is well gets no more jobs, and those that it had go to others."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

import pytest

from broker.fleet import look
from broker.job import Status
from tests.conditions import wait_until
from tests.workers.conftest import POOL, Maker
from tests.workers.scripted import ScriptedEngine, answer, payload
from workers.engine import Delta, EngineCall, Final
from workers.health_watch import FAILURES, HealthWatch


class Patient(ScriptedEngine):
    """Says how it is as told: well, ill, or nothing at all."""

    def __init__(self, *says: str) -> None:
        super().__init__()
        self.says = list(says)
        self.asked = 0

    async def health(self) -> bool:
        self.asked += 1
        word = self.says.pop(0) if self.says else "well"
        if word == "silent":
            await asyncio.Event().wait()
        return word == "well"


class Looked:
    """A watch and what it found."""

    def __init__(self, *says: str, every_s: float = 0.01) -> None:
        self.engine = Patient(*says)
        self.gone = 0
        self.watch = HealthWatch(self.engine, on_gone=self._note)
        self.watch.every_s = every_s

    def _note(self) -> None:
        self.gone += 1

    async def times(self, n: int) -> int:
        for _ in range(n):
            await self.watch.look()
        return self.gone


@pytest.mark.parametrize("word", ["ill", "silent"])
async def test_three_failures_in_a_row_and_no_fewer_give_it_up(word: str) -> None:
    looked = Looked(*[word] * FAILURES)
    assert [await looked.times(1) for _ in range(FAILURES)] == [0, 0, 1]


async def test_one_success_forgets_the_failures() -> None:
    assert await Looked("ill", "ill", "well", "ill", "ill").times(5) == 0


async def test_engine_that_sends_tokens_is_not_dead() -> None:
    looked = Looked(*["ill"] * 6, every_s=60.0)
    looked.watch.heard()
    assert await looked.times(6) == 0


async def test_recovery_takes_two_successes_in_a_row() -> None:
    watch = Looked("ill", "well", "ill", "well", "well").watch
    answers = [await watch.recovered() for _ in range(5)]
    assert [again_s == 0.0 for again_s in answers] == [False, False, False, False, True]


async def test_it_looks_again_and_again() -> None:
    looked = Looked()
    running = asyncio.create_task(looked.watch.run(0.001))
    await wait_until(lambda: looked.engine.asked >= 3)
    running.cancel()


class Wards:
    """Answers of jobs: `begun` ones have sent a first chunk; all hang until `well`."""

    def __init__(self) -> None:
        self.well = asyncio.Event()

    async def __call__(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        if call.body.get("begin"):
            yield Delta(payload("a"), 1)
        await self.well.wait()
        async for item in answer(call):
            yield item


BEGIN, WAIT = b'{"messages":[],"begin":true}', b'{"messages":[]}'


async def test_jobs_of_a_dead_engine_go_to_another_at_once_but_for_those_that_are_being_read(
    worker: Maker,
) -> None:
    ward = Wards()
    sick = await worker(ScriptedEngine(ward, healthy=False))
    waiting, polled = await sick.submit(body=WAIT, attached=True), await sick.submit(body=BEGIN)
    read = await sick.submit(body=BEGIN, attached=True)

    async def begun() -> bool:
        jobs = [await sick.producer.get(job_id) for job_id in (polled, read)]
        return all(job.first_token is not None for job in jobs) and len(sick.engine.seen) == 3

    await wait_until(begun)
    sick.puller.health.every_s = 0.0  # what it has sent is long ago
    for _ in range(FAILURES):
        await sick.puller.health.look()
    assert sick.puller.state == "unavailable"
    await worker(ScriptedEngine())
    for job_id in (waiting, polled):
        job = await sick.ended(job_id)
        assert (job.status, job.attempts, job.errors) == (Status.SUCCEEDED, 2, 0)
    assert (await sick.producer.get(read)).status is Status.RUNNING
    ward.well.set()
    assert (await sick.ended(read)).attempts == 1


async def test_the_fleet_sees_what_state_its_breaker_is_in(worker: Maker) -> None:
    rig = await worker(ScriptedEngine())

    async def seen() -> str:
        return "".join(w.breaker for w in (await look(rig.pipe, POOL)).workers)

    async def shown(state: str) -> bool:
        return await seen() == state

    await wait_until(partial(shown, "closed"))
    await rig.pipe.command("HSET", f"hw:{{{POOL}}}:brk:{rig.worker_id}", "state", "open")
    await rig.pipe.command("PEXPIRE", f"hw:{{{POOL}}}:brk:{rig.worker_id}", 5000)
    await wait_until(partial(shown, "open"))
    view = await look(rig.pipe, POOL)
    assert not view.ready_workers
    assert view.slots == 0
