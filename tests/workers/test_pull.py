"""The worker's loop against a real Redis: capacity, streaming, retries, aborts, drain, lost leases."""

import asyncio
import time
from collections.abc import AsyncGenerator

import orjson

from broker.fleet import look
from broker.job import Lease, ServiceClass, Status
from broker.keys import PoolKeys
from broker.policy import Limits
from tests.conditions import wait_until
from tests.workers.conftest import POOL, Maker
from tests.workers.scripted import ScriptedEngine, answer, payload
from workers.engine import (
    Delta,
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineFailed,
    EngineRejected,
    EngineUnavailable,
    Final,
)

KEYS = PoolKeys(POOL)


async def forever(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
    yield Delta(payload("begun "), 1)
    await asyncio.Event().wait()


async def test_streamed_job_that_is_polled_gets_a_whole_answer(worker: Maker) -> None:
    rig = await worker(ScriptedEngine())
    view = await rig.ended(await rig.submit())
    assert view.status is Status.SUCCEEDED
    whole = orjson.loads(view.result or b"")
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "a b c"}
    assert view.usage == {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 2}
    assert whole["usage"]["total_tokens"] == 8
    assert view.first_token is not None


async def test_unstreamed_answer_is_kept_verbatim(worker: Maker) -> None:
    rig = await worker(ScriptedEngine())
    view = await rig.ended(await rig.submit(stream=False))
    assert view.result == b'{"choices":[]}'


async def test_claims_as_many_as_there_are_slots_and_refills_single_slots(worker: Maker) -> None:
    gates: dict[str, asyncio.Event] = {}

    async def gated(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        await gates.setdefault(call.job_id, asyncio.Event()).wait()
        async for item in answer(call):
            yield item

    engine = ScriptedEngine(gated, slots=3)
    rig = await worker(engine)
    ids = [await rig.submit() for _ in range(5)]
    await wait_until(lambda: len(engine.seen) == 3)
    assert (await look(rig.pipe, POOL)).running == 3
    gates[engine.seen[1]].set()
    await wait_until(
        lambda: len(engine.seen) == 4, what="one freed slot takes one job, while the others run on"
    )
    assert rig.puller.ledger.free == 0
    for job_id in ids:
        gates.setdefault(job_id, asyncio.Event()).set()
    assert {(await rig.ended(job_id)).status for job_id in ids} == {Status.SUCCEEDED}
    assert engine.most_at_once == 3


async def test_cancel_aborts_the_engine_and_frees_the_slot(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever, slots=1))
    job_id = await rig.submit()
    await wait_until(lambda: rig.engine.seen)
    assert await rig.producer.cancel(job_id) is Status.CANCELLED
    await wait_until(lambda: rig.engine.aborted == [job_id] and rig.puller.ledger.free == 1)
    rig.engine.script = answer
    assert (await rig.ended(await rig.submit())).status is Status.SUCCEEDED
    assert (await rig.producer.get(job_id)).status is Status.CANCELLED


async def test_broken_engine_is_retried_and_the_job_keeps_count(worker: Maker) -> None:
    async def breaks_once(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        if len(rig.engine.seen) == 1:
            yield Delta(payload("half "), 1)
            raise EngineBroken("died in mid-stream")
        async for item in answer(call):
            yield item

    rig = await worker(ScriptedEngine(breaks_once))
    view = await rig.ended(await rig.submit())
    assert (view.status, view.errors, view.deaths, view.attempts) == (Status.SUCCEEDED, 1, 0, 2)
    assert orjson.loads(view.result or b"")["choices"][0]["message"]["content"] == "a b c"
    assert "died in mid-stream" in (await rig.producer.history(view.job_id))[0].error["message"]


async def test_answer_that_a_connection_has_begun_to_see_is_not_begun_again(worker: Maker) -> None:
    async def breaks(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        yield Delta(payload("half "), 1)
        # the chunk has to be in Redis, else nobody has seen it and the job may be retried
        await wait_until(lambda: rig.pipe.command("EXISTS", KEYS.output(call.job_id)))
        raise EngineBroken("died in mid-stream")

    rig = await worker(ScriptedEngine(breaks))
    view = await rig.ended(await rig.submit(attached=True))
    assert (view.status, view.attempts) == (Status.FAILED, 1)
    assert orjson.loads(view.error or b"")["code"] == "engine_broken"


async def test_past_its_retries_a_job_is_a_dead_letter_and_can_be_redriven(worker: Maker) -> None:
    async def breaks(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        raise EngineBroken("no")
        yield Final(b"", None, None)

    rig = await worker(ScriptedEngine(breaks), limits=Limits(max_errors=2))
    job_id = await rig.submit()
    view = await rig.ended(job_id)
    assert (view.status, view.errors) == (Status.FAILED, 3)
    assert await rig.producer.dead(POOL) == [job_id]
    rig.engine.script = answer
    again = await rig.producer.redrive(job_id)
    assert (await rig.ended(again)).status is Status.SUCCEEDED
    assert (await rig.producer.get(job_id)).redriven_as == again
    assert await rig.producer.dead(POOL) == []


async def test_rejected_request_fails_at_once_with_the_engines_words(worker: Maker) -> None:
    async def rejects(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        raise EngineRejected(
            400, b'{"error":{"message":"too long","type":"invalid_request_error","code":400}}'
        )
        yield Final(b"", None, None)

    rig = await worker(ScriptedEngine(rejects))
    view = await rig.ended(await rig.submit())
    assert (view.status, view.attempts, view.errors) == (Status.FAILED, 1, 0)
    assert orjson.loads(view.error or b"") == {
        "message": "too long",
        "type": "invalid_request_error",
        "code": "engine_rejected",
        "param": None,
        "status": 400,
    }
    assert await rig.producer.dead(POOL) == []


async def test_busy_engine_costs_the_job_nothing(worker: Maker) -> None:
    async def busy_twice(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        if len(rig.engine.seen) <= 2:
            raise EngineBusy("full", retry_after_s=0.01)
        async for item in answer(call):
            yield item

    rig = await worker(ScriptedEngine(busy_twice), limits=Limits(max_errors=1))
    view = await rig.ended(await rig.submit())
    assert (view.status, view.errors, view.attempts) == (Status.SUCCEEDED, 0, 3)


async def test_unreachable_engine_gets_no_jobs_until_it_is_healthy(worker: Maker) -> None:
    async def away(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        raise EngineUnavailable("connection refused")
        yield Final(b"", None, None)

    rig = await worker(ScriptedEngine(away, healthy=False, slots=1))
    job_id = await rig.submit()
    await wait_until(lambda: rig.puller.state == "unavailable")
    second = await rig.submit()
    assert len(rig.engine.seen) == 1
    rig.engine.script, rig.engine.healthy = answer, True
    assert (await rig.ended(job_id)).status is Status.SUCCEEDED
    assert (await rig.ended(second)).attempts == 1


async def test_request_that_makes_the_engine_fail_does_not_take_it_out(worker: Maker) -> None:
    async def fails(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        if call.body["messages"] == ["poison"]:
            raise EngineFailed("the engine failed with status 500")
        async for item in answer(call):
            yield item

    rig = await worker(ScriptedEngine(fails, healthy=False), limits=Limits(max_errors=1))
    poison = await rig.submit(body=b'{"messages":["poison"]}')
    good = await rig.submit()
    assert (await rig.ended(poison)).status is Status.FAILED
    assert (await rig.ended(good)).status is Status.SUCCEEDED
    assert rig.puller.state == "ready"


async def test_drain_finishes_what_runs_and_claims_nothing_new(worker: Maker) -> None:
    gate = asyncio.Event()

    async def gated(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        await gate.wait()
        async for item in answer(call):
            yield item

    rig = await worker(ScriptedEngine(gated, slots=1))
    first, second = await rig.submit(), await rig.submit()
    await wait_until(lambda: rig.engine.seen)
    rig.puller.drain()
    gate.set()
    await rig.running
    assert (await rig.producer.get(first)).status is Status.SUCCEEDED
    assert (await rig.producer.get(second)).status is Status.QUEUED
    await rig.producer.cancel(second)


async def test_drain_hands_back_what_does_not_finish_in_time_uncounted(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever), drain_s=0.01)
    job_id = await rig.submit()
    await wait_until(lambda: rig.engine.seen)
    rig.puller.drain()
    await rig.running
    view = await rig.producer.get(job_id)
    assert (view.status, view.errors, view.deaths) == (Status.QUEUED, 0, 0)
    other = await worker(ScriptedEngine())
    assert (await other.ended(job_id)).status is Status.SUCCEEDED


async def test_lease_that_was_given_away_stops_the_work_and_nothing_is_written_twice(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever), limits=Limits(lease_s=1.5))
    job_id = await rig.submit()
    await wait_until(lambda: rig.pipe.command("EXISTS", KEYS.output(job_id)))
    await rig.producer.cancel(job_id)
    # as if the abort had not been heard: the heartbeat finds out
    await wait_until(lambda: rig.engine.aborted == [job_id])
    assert (await rig.producer.get(job_id)).status is Status.CANCELLED


async def test_leases_live_on_while_the_event_loop_is_blocked(worker: Maker) -> None:
    rig = await worker(ScriptedEngine(forever), limits=Limits(lease_s=1.0))
    job_id = await rig.submit()
    await wait_until(lambda: rig.engine.seen)
    before = float(await rig.pipe.command("ZSCORE", KEYS.named("leases"), job_id))
    time.sleep(1.5)  # noqa: ASYNC251 - the blocked loop is what is tested
    after = float(await rig.pipe.command("ZSCORE", KEYS.named("leases"), job_id))
    assert after - before >= 1000
    await rig.producer.cancel(job_id)


async def test_observers_see_each_job_start_and_end(worker: Maker) -> None:
    class Log:
        def __init__(self) -> None:
            self.seen: list[tuple[str, str]] = []

        def started(self, lease: Lease) -> None:
            self.seen.append(("started", lease.job_id))

        def ended(self, lease: Lease, outcome: str, *, run_s: float) -> None:
            self.seen.append((outcome, lease.job_id))

        def close(self) -> None: ...

    log = Log()
    rig = await worker(ScriptedEngine(), observers=(log,))
    job_id = await rig.submit(service_class=ServiceClass.P2)
    await rig.ended(job_id)
    await wait_until(lambda: log.seen == [("started", job_id), ("succeeded", job_id)])


async def test_abort_before_a_job_has_begun_gives_its_slot_back(worker: Maker) -> None:
    class AtOnce:
        ends = 0

        def started(self, lease: Lease) -> None:
            asyncio.get_running_loop().call_soon(rig.puller.abort, lease.job_id)

        def ended(self, lease: Lease, outcome: str, *, run_s: float) -> None:
            self.ends += 1

        def close(self) -> None: ...

    observer = AtOnce()
    rig = await worker(ScriptedEngine(forever), observers=(observer,))
    job_id = await rig.submit()
    await wait_until(lambda: observer.ends == 1)
    assert rig.puller.ledger.busy == 0
    await rig.producer.cancel(job_id)
