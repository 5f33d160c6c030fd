"""The engine's bad days, each as its clients and the Headway worker's adapter see it."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import orjson
import pytest

from broker.errors import ConfigError
from tests.conditions import wait_until
from tests.workers.engines.calls import chat, collect, text_of, whole
from tests.workers.engines.sim.conftest import Served, Start
from workers.engine import EngineBroken, EngineBusy, EngineFailed, EngineRejected, EngineTimeout
from workers.engines.exchange import HttpOptions
from workers.engines.openai_http import OpenAIEngine
from workers.engines.sim.failures import Failures, Fault

ASK = {"prompt": "x", "max_tokens": 5}


@pytest.fixture
async def adapt() -> AsyncIterator[object]:
    """`adapt(served)`: the worker's adapter for it."""
    engines: list[OpenAIEngine] = []

    async def go(served: Served) -> OpenAIEngine:
        options = HttpOptions(first_byte_s=5.0, between_bytes_s=0.3, answer_s=5.0)
        engines.append(OpenAIEngine(served.url, dialect="vllm", options=options))
        await engines[-1].start()
        return engines[-1]

    yield go
    for engine in engines:
        await engine.close()


def test_the_same_seed_fails_the_same_requests_about_as_often_as_told() -> None:
    failures = Failures(seed=5, error_rate=0.2, busy_rate=0.1, garbage_rate=0.1, hang_rate=0.05)
    drawn = [failures.of(n) for n in range(1, 2001)]
    assert drawn == [failures.of(n) for n in range(1, 2001)]
    assert drawn != [Failures(seed=6, error_rate=0.2).of(n) for n in range(1, 2001)]
    shares = {fault: drawn.count(fault) / 2000 for fault in Fault}
    assert [shares[f] for f in (Fault.ERROR, Fault.BUSY, Fault.GARBAGE, Fault.HANG)] == pytest.approx(
        [0.2, 0.1, 0.1, 0.05], abs=0.03
    )


@pytest.mark.parametrize("wrong", [{"error_rate": 1.5}, {"busy_rate": -0.1}, {"slow_factor": 0.0}])
def test_rates_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Failures(**wrong)  # type: ignore[arg-type]


async def test_an_error_and_a_busy_answer_have_their_status(start: Start) -> None:
    error = await (await start(failures=Failures(error_rate=1.0))).http.post("/v1/completions", json=ASK)
    busy = await (await start(failures=Failures(busy_rate=1.0))).http.post("/v1/completions", json=ASK)
    assert (error.status_code, busy.status_code, busy.headers["Retry-After"]) == (500, 503, "1")


async def test_a_crash_ends_the_process_at_the_first_token_of_that_request(start: Start) -> None:
    served = await start(failures=Failures(crash_after=2))
    await served.http.post("/v1/completions", json=ASK)
    assert served.left == []
    await served.http.post("/v1/completions", json=ASK)
    assert served.left
    assert set(served.left) == {70}


async def test_an_engine_that_stands_still_stops_all_streams_and_still_says_it_is_healthy(
    start: Start,
) -> None:
    served = await start(failures=Failures(hang_after=2), speed=1.0)
    body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True}
    asking = [asyncio.create_task(served.http.post("/v1/completions", json=body)) for _ in range(2)]
    await wait_until(lambda: served.replica.running == 2)
    before = -1

    def still() -> bool:
        nonlocal before
        before, last = served.replica.totals.steps, before
        return before == last

    await wait_until(still)
    assert (await served.http.get("/health")).status_code == 200
    assert served.replica.busy
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await wait_until(lambda: not served.replica.busy)


async def test_a_stream_that_hangs_leaves_the_others_alone(start: Start) -> None:
    served = await start(failures=Failures(seed=1, hang_rate=0.5))
    faults = [Failures(seed=1, hang_rate=0.5).of(n) for n in (1, 2, 3, 4)]
    assert set(faults) == {Fault.HANG, Fault.NONE}
    for fault in faults:
        asked = served.http.post("/v1/completions", json=ASK, timeout=0.5)
        if fault is Fault.NONE:
            assert (await asked).status_code == 200
        else:
            with pytest.raises(httpx.ReadTimeout):
                await asked


async def test_a_slow_engine_takes_so_many_times_as_long(start: Start) -> None:
    """20 steps of 1 ms at a tenth of the speed are 0.2 s; three times as slow they cannot be less than 0.6 s."""
    served = await start(failures=Failures(slow_factor=3.0), speed=0.1)
    response = await served.http.post("/v1/completions", json=ASK | {"max_tokens": 20, "ignore_eos": True})
    assert response.elapsed.total_seconds() > 0.5


async def test_wrong_usage_counts_no_prompt_and_ten_times_the_answer(start: Start) -> None:
    served = await start(failures=Failures(wrong_usage=True))
    usage = (await served.http.post("/v1/completions", json=ASK | {"ignore_eos": True})).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (0, 50)


async def test_garbage_is_no_json(start: Start) -> None:
    served = await start(failures=Failures(garbage_rate=1.0))
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads((await served.http.post("/v1/completions", json=ASK)).content)
    lines = (await served.http.post("/v1/completions", json=ASK | {"stream": True})).content.split(b"\n\n")
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(lines[-2].removeprefix(b"data: "))


async def test_the_workers_adapter_streams_from_it_and_reads_its_load_and_limits(
    start: Start, adapt: Start
) -> None:
    served = await start()
    engine: OpenAIEngine = await adapt(served)  # type: ignore[assignment]
    payloads, final = await collect(engine, chat(max_tokens=6, ignore_eos=True))
    assert len(text_of(payloads).split()) == 6
    assert final.usage is not None
    assert (final.usage.completion_tokens, final.finish_reason) == (6, "length")
    load, limits = await engine.load(), await engine.limits()
    assert (load.running, load.waiting, load.kv_used_share, load.preemptions) == (0, 0, 0.0, 0)
    assert (load.prefix_query_tokens, load.prefix_hit_tokens) == (final.usage.prompt_tokens, 0)
    assert (limits.context_tokens, limits.kv_tokens, limits.model) == (1024, 4096, "m")
    assert await engine.health()


async def test_the_workers_adapter_takes_it_for_vllm_when_nobody_says_what_it_is(start: Start) -> None:
    engine = OpenAIEngine((await start()).url)
    await engine.start()
    assert engine.name.startswith("vllm at ")
    await engine.close()


async def test_the_workers_adapter_reports_the_cached_part_of_the_prompt(start: Start, adapt: Start) -> None:
    engine: OpenAIEngine = await adapt(await start())  # type: ignore[assignment]
    long = "The same beginning. " * 20
    cached = [(await collect(engine, chat(long, job_id=f"j{n}")))[1].usage for n in range(2)]
    assert [usage and usage.cached_tokens > 0 for usage in cached] == [False, True]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("failures", "error"),
    [
        (Failures(error_rate=1.0), EngineFailed),
        (Failures(busy_rate=1.0), EngineBusy),
        (Failures(garbage_rate=1.0), EngineBroken),
    ],
)
async def test_the_workers_adapter_tells_the_failures_apart(
    start: Start, adapt: Start, *, failures: Failures, error: type[Exception], stream: bool
) -> None:
    engine: OpenAIEngine = await adapt(await start(failures=failures))  # type: ignore[assignment]
    with pytest.raises(error):
        async for _ in engine.generate(chat(stream=stream)):
            pass  # what a stream's bytes say is not looked at, be they garbage


async def test_the_workers_adapter_gives_up_on_a_stream_that_hangs_and_frees_the_engine(
    start: Start, adapt: Start
) -> None:
    served = await start(failures=Failures(hang_rate=1.0))
    engine: OpenAIEngine = await adapt(served)  # type: ignore[assignment]
    with pytest.raises(EngineTimeout, match="fell silent"):
        await collect(engine, chat(max_tokens=500, ignore_eos=True))
    await wait_until(lambda: not served.replica.busy)


async def test_the_workers_adapter_blames_the_caller_for_what_is_too_long(start: Start, adapt: Start) -> None:
    engine: OpenAIEngine = await adapt(await start())  # type: ignore[assignment]
    with pytest.raises(EngineRejected) as caught:
        await whole(engine, chat("word " * 2000, stream=False))
    assert b"maximum context length" in caught.value.body
