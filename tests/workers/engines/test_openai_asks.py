"""What the client finds out about a server, and what it says of one that is not there."""

import pytest

from broker.errors import ConfigError
from tests.workers.engines.calls import chat, collect
from tests.workers.engines.conftest import Serve
from tests.workers.engines.script import Script
from workers.engine import EngineLimits, EngineLoad, EngineUnavailable
from workers.engines.openai_http import Named, OpenAIEngine


async def test_nobody_there_is_unavailable() -> None:
    engine = OpenAIEngine("http://127.0.0.1:1", dialect="vllm")
    with pytest.raises(EngineUnavailable, match="not started"):
        await collect(engine, chat())
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1"):
        await engine.start()
    with pytest.raises(EngineUnavailable):
        await collect(engine, chat())
    with pytest.raises(EngineUnavailable):
        await engine.load()
    assert not await engine.health()
    await engine.close()
    await engine.close()


def test_an_unknown_dialect_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="vllm"):
        OpenAIEngine("http://127.0.0.1:1", dialect="vlm")


async def test_load_health_and_limits_are_read_from_the_server(serve: Serve) -> None:
    metrics = (
        'vllm:num_requests_running{e="0"} 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n'
    )
    models = {"data": [{"id": "m", "max_model_len": 4096}]}
    engine = await serve(
        Script().answer, dialect="vllm", pages={"/metrics": metrics, "/v1/models": models, "/health": ""}
    )
    assert await engine.load() == EngineLoad(3, 1, 0.5)
    assert await engine.limits() == EngineLimits(64, 4096, "m")
    assert await engine.health()


async def test_slots_of_the_user_come_first(serve: Serve) -> None:
    engine = await serve(
        Script().answer, dialect="llamacpp", named=Named(slots=3), pages={"/props": {"total_slots": 8}}
    )
    assert await engine.limits() == EngineLimits(3, None, "real-name")


async def test_metrics_switched_off_are_unknown_load(serve: Serve) -> None:
    assert await (await serve(Script().answer, dialect="vllm")).load() == EngineLoad(None, None, None)
