"""What callers are told of jobs that were handed on and then ended badly, or were handed on again: their own id, all passes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api import outages
from broker import rescue
from broker.config import Config, ModelConfig
from broker.keys import PoolKeys
from broker.route_config import RouteConfig
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, serve, whole_answer
from tests.api.routed import Route, ask

BAD = (
    b'{"message":"too long","type":"invalid_request_error","code":"context_length","param":null,"status":400}'
)
MODELS = (ModelConfig(pool="small"), ModelConfig(pool="large", fallback="small"))
TO_SMALL = {"name": "auto", "small": "small", "large": "large", "target": {"share_large": 0.0}}


@pytest.fixture
async def route(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Route]:
    """All goes to the small pool first; the large one has it as its fallback, and is out as soon as it is seen to be."""
    monkeypatch.setattr(outages, "OUT_S", 0.0)
    monkeypatch.setattr(outages, "EVERY_S", 0.02)
    monkeypatch.setattr(rescue, "EVERY_MS", 20)
    config = Config(models=MODELS, routes=(RouteConfig.model_validate(TO_SMALL),))
    async with serve(settings.model_copy(update={"ping_s": 60.0}), config=config) as served:
        small, large = [await ScriptedWorker.join(settings.redis_url, pool) for pool in ("small", "large")]
        await served.fresh()
        yield Route(served, small, large)
        await small.close()
        await large.close()


async def polled(route: Route, job_id: str, **query: object) -> dict[str, Any]:
    document: dict[str, Any] = (await route.served.http.get(f"/v1/jobs/{job_id}", params=query)).json()  # type: ignore[arg-type]
    return document


async def handed_on(route: Route, **fields: object) -> str:
    """The id of a durable job that the large pool has got."""
    job = (await route.served.http.post("/v1/jobs", json={**ask(), "class": "P1", **fields})).json()
    await route.hand_on(await route.small.claim(), why="engine_rejected")
    return str(job["id"])


async def test_an_error_of_the_second_pass_says_which_pool_it_is_of(route: Route) -> None:
    asked = await route.post(ask())
    await route.hand_on(await route.small.claim(), why="engine_rejected")
    await route.large.finish(await route.large.claim(), BAD, succeeded=False)
    answer = await asked
    assert isinstance(answer, httpx.Response)
    headers = answer.headers
    assert (answer.status_code, headers["x-headway-pool"]) == (400, "large")
    assert headers["x-headway-escalated"] == "engine_rejected"
    assert (await polled(route, headers["x-headway-job"]))["pool"] == "large"


async def test_a_deadline_is_the_callers_own_after_an_escalation(route: Route) -> None:
    job_id = await handed_on(route, deadline_s=50)
    lease = await route.large.claim()
    await route.large.pipe.command("HSET", PoolKeys("large").job(lease.job_id), "deadline", 1)
    await route.served.producer.expire(lease.job_id)
    job = await polled(route, job_id)
    assert job["error"]["message"] == "no answer within the deadline of 50 s"


async def test_a_cancelled_job_is_named_by_the_id_that_its_caller_knows(route: Route) -> None:
    asked = await route.post(ask())
    lease = await route.small.claim()
    await route.hand_on(lease)
    await route.served.producer.cancel((await route.large.claim()).job_id)
    answer = await asked
    assert isinstance(answer, httpx.Response)
    words = f"{lease.job_id} was cancelled"
    assert (answer.status_code, answer.json()["error"]["message"]) == (410, words)
    assert (await polled(route, lease.job_id))["error"]["message"] == words


async def test_a_dead_letter_is_listed_and_redriven_by_the_id_that_its_caller_knows(route: Route) -> None:
    job_id = await handed_on(route)
    await route.large.bury(await route.large.claim(), b'{"message":"bad","code":"engine_broken"}')
    letters = (await route.served.http.get("/v1/jobs?dead=true")).json()["data"]
    assert [(letter["id"], letter["pool"]) for letter in letters] == [(job_id, "large")]
    assert (await route.served.http.get(f"/v1/jobs?dead=true&after={job_id}")).json()["data"] == []
    again = await route.served.http.post(f"/v1/jobs/{job_id}/redrive")
    assert (again.status_code, again.json()["pool"]) == (202, "large")
    await route.large.finish(await route.large.claim(), whole_answer("ok"))
    assert (await polled(route, again.json()["id"], wait=10))["status"] == "succeeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_escalated_to_a_pool_that_is_out_is_answered_by_that_ones_fallback(
    route: Route, stream: bool
) -> None:
    asked = await route.post(ask(stream=stream))
    first = await route.small.claim()
    await route.hand_on(first, why="low_confidence")
    await route.large.announce("unavailable")
    await route.served.fresh()
    lease = await route.small.claim()
    if stream:
        await route.small.stream(lease, "the small one again")
    else:
        await route.small.finish(lease, whole_answer("the small one again"))
    answer = await asked
    assert isinstance(answer, httpx.Response)
    assert (answer.status_code, answer.text.count("the small one again")) == (200, 1)
    names = ("job", "pool", "escalated", "degraded")
    said = [answer.headers[f"x-headway-{name}"] for name in names]
    assert said == [first.job_id, "small", "low_confidence", "large"]
    job = await polled(route, first.job_id)
    assert (job["id"], job["pool"], job["degraded"], job["status"]) == (
        first.job_id,
        "small",
        "large",
        "succeeded",
    )
    assert [(each["pool"], each["reason"]) for each in job["escalations"]] == [
        ("small", "low_confidence"),
        ("large", "pool_out"),
    ]
    assert (job["usage"]["prompt_tokens"], job["attempts"]["count"]) == (6, 3)
    ends = [each["detail"] for each in job["story"] if each["event"] == "escalated"]
    assert [end.partition(":")[0] for end in ends] == ["not good enough (low_confidence)", "nobody serves it"]
    assert ends[0].endswith("3 tokens in, 2 out")


async def test_who_would_rather_wait_is_not_rescued_after_an_escalation_either(route: Route) -> None:
    headers = {"x-headway-fallback": "wait"}
    asking = asyncio.create_task(route.served.http.post("/v1/chat/completions", json=ask(), headers=headers))
    lease = await route.small.claim()
    await route.hand_on(lease)
    assert await route.large.pipe.command("HGET", PoolKeys("large").job(lease.heir), "fall") is None
    await route.large.finish(await route.large.claim(), whole_answer("ok"))
    assert (await asking).headers["x-headway-pool"] == "large"
