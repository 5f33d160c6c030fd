"""Limits as callers meet them: headers that fall, 429 that says when, and places that are free again."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import SecretStr

from api.metering import Metering, span
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.errors import RedisAway
from broker.keys import LimitKeys
from broker.limits import Quota
from broker.settings import Settings
from broker.steering import Wish, steer_pool
from broker.tenants import TenantConfig
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer
from tests.broker.jobs import submission
from tests.conditions import wait_until

TENANTS = (
    TenantConfig(name="free", keys=(SecretStr("free-key"),)),
    TenantConfig(
        name="some",
        keys=(SecretStr("some-key"),),
        limits=Quota(requests_per_minute=3, tokens_per_minute=100_000),
    ),
    TenantConfig(
        name="one",
        keys=(SecretStr("one-key"), SecretStr("other-key")),
        key_limits=Quota(concurrent=1, tokens_per_minute=100_000),
    ),
)
CONFIG = Config(models=(ModelConfig(pool="small"),), tenants=TENANTS)


@pytest.fixture
async def served(redis_url: str) -> AsyncIterator[Served]:
    async with serve(Settings(redis_url=redis_url), config=CONFIG) as running:
        yield running


def auth(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}-key"} | more


async def ask(served: Served, worker: ScriptedWorker, key: str, **fields: object) -> httpx.Response:
    asking = asyncio.create_task(
        served.http.post("/v1/chat/completions", json=chat(**fields), headers=auth(key))
    )
    lease = await worker.claim()
    await (worker.stream(lease, "a", "b") if lease.stream else worker.finish(lease, whole_answer("ok")))
    return await asking


async def test_headers_fall_with_each_request_and_the_next_is_refused(
    served: Served, worker: ScriptedWorker
) -> None:
    left = []
    for _ in range(3):
        answer = await ask(served, worker, "some", max_tokens=50)
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        left.append(int(answer.headers["x-ratelimit-remaining-requests"]))
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 100_000
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
    assert left == [2, 1, 0]
    refused = await served.http.post("/v1/chat/completions", json=chat(), headers=auth("some"))
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


async def test_tokens_are_settled_by_the_engines_count(served: Served, worker: ScriptedWorker) -> None:
    """The scripted worker counts 5 tokens, whatever was forecast."""
    for stream in (False, True):
        await ask(served, worker, "some", max_tokens=500, stream=stream)
    answer = await served.http.post("/v1/jobs", json=chat(max_tokens=7), headers=auth("some"))
    taken = 100_000 - int(answer.headers["x-ratelimit-remaining-tokens"])
    forecast = (await served.producer.get(answer.json()["id"])).forecast
    assert taken == 10 + forecast.prompt_tokens + forecast.output_tokens
    await served.producer.cancel(answer.json()["id"])


async def test_one_job_at_a_time_is_free_when_the_answer_is_there(
    served: Served, worker: ScriptedWorker
) -> None:
    for stream in (False, True, False):
        assert (await ask(served, worker, "one", stream=stream)).status_code == 200


async def test_polled_job_holds_its_keys_place_until_it_ends(served: Served, worker: ScriptedWorker) -> None:
    first = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=auth("one"))
    assert first.status_code == 202
    refused = await served.http.post("/v1/jobs", json=chat(), headers=auth("one"))
    assert refused.status_code == 429
    assert "at a time" in refused.json()["error"]["message"]
    other = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=auth("other"))
    assert other.status_code == 202, "each key has a place of its own"
    for _ in range(2):
        await worker.finish(await worker.claim(), whole_answer("ok"))

    async def is_free() -> bool:
        again = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=auth("one"))
        return again.status_code == 202

    await wait_until(is_free, what="a free place")
    await worker.finish(await worker.claim(), whole_answer("ok"))
    await wait_until(lambda: noted_ends(served), what="an end that is taken note of")


async def noted_ends(served: Served) -> bool:
    return not await served.pipe.command("EXISTS", "hw:{small}:ended:l")


async def test_caller_that_leaves_frees_its_place(served: Served, worker: ScriptedWorker) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await served.http.post("/v1/chat/completions", json=chat(), headers=auth("one"), timeout=0.2)

    async def is_free() -> bool:
        answer = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=auth("one"))
        return answer.status_code == 202

    await wait_until(is_free, what="a free place")
    await worker.finish(await worker.claim(), whole_answer("ok"))


async def test_request_that_the_queue_refuses_gives_back_its_place_and_tokens(
    served: Served, worker: ScriptedWorker
) -> None:
    await steer_pool(served.pipe, ["small"], wish=Wish.DRAIN)

    async def refused() -> bool:
        answer = await served.http.post("/v1/jobs", json=chat(), headers=auth("one"))
        if answer.status_code == 202:
            await served.producer.cancel(answer.json()["id"])
        return answer.status_code == 503

    await wait_until(refused, what="a pool that takes nothing")
    await steer_pool(served.pipe, ["small"], wish=Wish.RESUME)

    async def let_in() -> bool:
        answer = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=auth("one"))
        return answer.status_code == 202

    await wait_until(let_in, what="a free place")
    await worker.finish(await worker.claim(), whole_answer("ok"))


async def test_repeat_of_a_job_by_its_key_takes_nothing(served: Served, worker: ScriptedWorker) -> None:
    asked = chat(**{"class": "P1"})
    headers = auth("some") | {"Idempotency-Key": "again"}
    ids = {(await served.http.post("/v1/jobs", json=asked, headers=headers)).json()["id"] for _ in range(6)}
    assert len(ids) == 1
    assert await served.pipe.command("HGET", LimitKeys("some").window("tenant"), "r") == b"1"
    await worker.finish(await worker.claim(), whole_answer("ok"))


async def test_caller_without_limits_leaves_no_trace(served: Served, worker: ScriptedWorker) -> None:
    answer = await ask(served, worker, "free")
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    assert not await served.pipe.command("EXISTS", LimitKeys("free").window("tenant"))


async def test_without_redis_a_limited_request_passes_only_if_that_was_chosen() -> None:
    pipe = Pipe("redis://127.0.0.1:1/0")
    tenant, job = TENANTS[1].tenant, submission()
    with pytest.raises(RedisAway):
        await Metering(pipe, is_open=False).take(job, tenant)
    meter = await Metering(pipe, is_open=True).take(job, tenant)
    assert meter is not None
    assert meter.headers == []
    await meter.settle()
    await pipe.close()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (6.5, "6.5s"), (360, "6m0s")]
)
def test_spans_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert span(seconds) == text
