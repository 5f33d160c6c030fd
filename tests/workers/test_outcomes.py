"""What a worker tells the predictor: of jobs that succeeded, features and counts, and never a word of them."""

import asyncio
from collections.abc import AsyncGenerator

import orjson
import pytest

from broker import learning
from broker.connection import Pipe
from broker.errors import RedisAway
from broker.job import Forecast
from predictor.features import INDEX, VERSION
from predictor.habits import past_key
from predictor.history import template_key
from tests.conditions import wait_until
from tests.workers.conftest import POOL, Maker, Rig
from tests.workers.scripted import ScriptedEngine, answer, payload
from workers import outcomes
from workers.engine import Delta, EngineBroken, EngineCall, Final, Usage
from workers.outcomes import Reporter
from workers.sight import Sight

SECRET = "xylophone marmalade"
BODY = orjson.dumps({"messages": [{"role": "user", "content": f"Why is {SECRET} blue?"}]})


async def watched(worker: Maker, engine: ScriptedEngine) -> tuple[Rig, Reporter]:
    reporter = Reporter(Pipe(worker.url))
    worker.stack.push_async_callback(reporter._pipe.close)
    sight = Sight(reporter)
    rig = await worker(ScriptedEngine(sight.watch(engine).generate), observers=(sight,))
    return rig, reporter


async def reported(rig: Rig, reporter: Reporter, *, n: int) -> list[learning.Outcome]:
    """Once the observer has heard of the last end."""

    async def look() -> list[learning.Entry]:
        await reporter.flush()
        found = await learning.read_after(rig.pipe, POOL, after="0")
        return found if len(found) >= n else []

    return [entry.outcome for entry in await wait_until(look, what="the outcomes are reported")]


async def test_a_finished_job_is_reported_with_features_counts_and_times(worker: Maker) -> None:
    rig, reporter = await watched(worker, ScriptedEngine())
    await rig.ended(await rig.submit(body=BODY, tenant="acme", forecast=Forecast(5, 11, 0.25, kv_tokens=25)))
    (found,) = await reported(rig, reporter, n=1)
    document = orjson.loads(BODY)
    assert found.past_key == past_key("acme", template_key(document))
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (5, 3, 2)
    assert (found.forecast_tokens, found.forecast_p90, found.forecast_s) == (11, 20, 0.25)
    assert (found.ended, found.beside, found.features_version) == ("stop", 0, VERSION)
    assert found.first_s is not None
    assert 0 <= found.first_s <= found.run_s < 10
    assert found.features[INDEX["messages"]] == 1
    assert found.features[INDEX["template_count"]] == 0


async def test_no_word_of_a_prompt_or_an_answer_is_kept(worker: Maker) -> None:
    async def tell(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        yield Delta(payload(SECRET), 1)
        yield Final(b"", Usage(5, 3, 0), "stop")

    rig, reporter = await watched(worker, ScriptedEngine(tell))
    await rig.ended(await rig.submit(body=BODY, tenant="acme-secret-name"))
    await reported(rig, reporter, n=1)
    keys = [f"hw:{{{POOL}}}:{name}" for name in ("learn", "pasts", "past_at")]
    stored = b"".join([await rig.pipe.command("DUMP", key) for key in keys])
    dumped = orjson.dumps(
        [[k.hex() for k in row] for _, row in await rig.pipe.command("XRANGE", keys[0], "-", "+")]
    )
    text = stored + bytes.fromhex("".join(v for row in orjson.loads(dumped) for v in row))
    for word in (*SECRET.split(), "acme-secret-name", "blue"):
        assert word.encode() not in text


async def test_choices_are_side_by_side_and_whole_answers_have_no_first_token(worker: Maker) -> None:
    async def four(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        yield Final(b'{"choices":[]}', Usage(5, 400, 0), "length")

    rig, reporter = await watched(worker, ScriptedEngine(four))
    body = orjson.dumps(orjson.loads(BODY) | {"n": 4})
    forecast = Forecast(5, 80, 0.1, kv_tokens=805)
    await rig.ended(await rig.submit(body=body, stream=False, forecast=forecast))
    (found,) = await reported(rig, reporter, n=1)
    assert (found.output_tokens, found.first_s, found.ended) == (100, None, "length")
    assert (found.forecast_tokens, found.forecast_p90) == (20, 200)


async def test_only_what_succeeded_and_was_counted_teaches(worker: Maker) -> None:
    async def mixed(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        kind = call.body["kind"]
        if kind == "broken":
            raise EngineBroken("it died")
        usage = {"uncounted": None, "recounted": Usage(5, 3, 0, recounted=True), "empty": Usage(5, 0, 0)}
        yield Final(b'{"choices":[]}', usage.get(kind, Usage(5, 7, 0)), "stop")

    rig, reporter = await watched(worker, ScriptedEngine(mixed))
    for kind in ("broken", "uncounted", "recounted", "empty", "good"):
        await rig.ended(await rig.submit(body=orjson.dumps({"messages": [], "kind": kind}), stream=False))
    (found,) = await reported(rig, reporter, n=1)
    assert found.output_tokens == 7


async def test_it_is_seen_how_many_run_beside_a_job(worker: Maker) -> None:
    go = asyncio.Event()

    async def wait(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        await go.wait()
        async for item in answer(call):
            yield item

    engine = ScriptedEngine(wait)
    rig, reporter = await watched(worker, engine)
    ids = [await rig.submit() for _ in range(3)]
    await wait_until(lambda: len(engine.seen) == 3, what="all three run")
    go.set()
    for job_id in ids:
        await rig.ended(job_id)
    assert sorted(found.beside for found in await reported(rig, reporter, n=3)) == [0, 1, 2]


async def test_of_too_many_ends_some_are_left_out(worker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MOST", 2)
    rig, reporter = await watched(worker, ScriptedEngine())
    for job_id in [await rig.submit() for _ in range(5)]:
        await rig.ended(job_id)
    await wait_until(lambda: reporter.dropped == 3, what="three are dropped")
    assert len(await reported(rig, reporter, n=2)) == 2


async def test_without_redis_outcomes_are_dropped_and_nothing_is_raised(worker: Maker) -> None:
    rig, reporter = await watched(worker, ScriptedEngine())
    await rig.ended(await rig.submit())
    await wait_until(lambda: bool(reporter._waiting), what="an outcome waits")
    await reporter._pipe.close()
    with pytest.raises(RedisAway):
        await reporter._pipe.command("PING")
    await reporter.flush()
    assert reporter.dropped == 1
