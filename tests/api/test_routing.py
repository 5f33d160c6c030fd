"""A route through the API: what is chosen and said, where a conversation stays, and one answer after an escalation."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from broker.job import Forecast, Status
from broker.keys import PoolKeys
from broker.settings import Settings
from predictor.features import Features, extract
from predictor.learned import LearnedEstimator
from tests.api.harness import ScriptedWorker, serve, whole_answer
from tests.api.routed import EASY, HARD, Route, ask, config, routed, submitted, turn
from tests.conditions import wait_until


@pytest.fixture
async def route(settings: Settings) -> AsyncIterator[Route]:
    """Without pings, which would begin a stream before its pool is known, on a machine that is slow enough."""
    async with routed(settings.model_copy(update={"ping_s": 60.0})) as running:
        yield running


async def test_the_answer_says_where_the_request_went_and_why(route: Route) -> None:
    asked = await route.post(ask())
    await route.small.finish(await route.small.claim(), whole_answer("hello"))
    answer = await asked
    assert answer.status_code == 200  # type: ignore[attr-defined]
    headers = answer.headers  # type: ignore[attr-defined]
    assert headers["x-headway-pool"] == "small"
    assert headers["x-headway-route"].startswith("small p=0.")
    assert "x-headway-escalated" not in headers


async def test_a_route_is_listed_among_the_models(route: Route) -> None:
    names = [entry["id"] for entry in (await route.served.http.get("/v1/models")).json()["data"]]
    assert names == ["small", "large", "auto"]
    assert (await route.served.http.get("/v1/models/auto")).json()["headway"]["route"]["large"] == "large"


async def test_the_target_decides_and_hard_prompts_go_first(settings: Settings, redis_url: str) -> None:
    async with serve(settings, config=config(target={"share_large": 0.5})) as served:
        workers = [await ScriptedWorker.join(redis_url, pool) for pool in ("small", "large")]
        chances = []
        for text in (EASY, HARD):
            document = await submitted(served, ask(text))
            chances.append(float(document["route"].split("p=")[1].split(" ")[0]))
        assert chances[0] > chances[1]
        for worker in workers:
            await worker.close()


async def test_a_conversation_stays_where_it_began(route: Route) -> None:
    """The first turn went to the large pool, as another process or another load chose."""
    asked = await route.post(ask())
    lease = await route.small.claim()
    await route.hand_on(lease)
    await route.large.finish(await route.large.claim(), whole_answer("hello"))
    await asked

    async def follows() -> bool:
        document = await submitted(route.served, turn(EASY))
        return bool(document["pool"] == "large" and document["route"].endswith(" sticky"))

    await wait_until(follows, what="the next turn is in the large pool")
    other = await submitted(route.served, turn("Another conversation"))
    assert other["pool"] == "small"


async def test_an_escalated_request_gets_one_answer_under_its_first_id(route: Route) -> None:
    asked = await route.post(ask())
    lease = await route.small.claim()
    await route.hand_on(lease)
    await route.large.finish(await route.large.claim(), whole_answer("from the large one"))
    answer = await asked
    assert answer.json()["choices"][0]["message"]["content"] == "from the large one"  # type: ignore[attr-defined]
    headers = answer.headers  # type: ignore[attr-defined]
    assert headers["x-headway-job"] == lease.job_id
    assert headers["x-headway-pool"] == "large"
    assert headers["x-headway-escalated"] == "empty_answer"


async def test_a_stream_that_had_not_begun_goes_on_with_the_large_one_and_nothing_else(route: Route) -> None:
    asked = await route.post(ask(stream=True))
    await route.hand_on(await route.small.claim(), why="low_confidence")
    await route.large.stream(await route.large.claim(), "from ", "the ", "large ", "one")
    answer = await asked
    lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]  # type: ignore[attr-defined]
    said = "".join(orjson.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines)
    assert said == "from the large one"
    assert answer.headers["x-headway-pool"] == "large"  # type: ignore[attr-defined]


async def test_a_polled_jobs_story_has_both_passes(route: Route) -> None:
    document = (await route.served.http.post("/v1/jobs", json={**ask(), "class": "P1"})).json()
    waiting = asyncio.create_task(route.served.http.get(f"/v1/jobs/{document['id']}?wait=10"))
    await route.hand_on(await route.small.claim())
    await route.large.finish(await route.large.claim(), whole_answer("done"))
    job = (await waiting).json()
    assert (job["id"], job["status"], job["pool"]) == (document["id"], "succeeded", "large")
    assert job["usage"]["prompt_tokens"] == 6
    assert job["attempts"]["count"] == 2
    assert [each["reason"] for each in job["escalations"]] == ["empty_answer"]
    listed = (await route.served.http.get("/v1/jobs?status=succeeded")).json()["data"]
    assert [each["id"] for each in listed] == [document["id"]]


async def test_events_begin_anew_and_resume_after_any_id(route: Route) -> None:
    document = (await route.served.http.post("/v1/jobs", json={**ask(), "class": "P1"})).json()
    watching = asyncio.create_task(route.served.http.get(f"/v1/jobs/{document['id']}/events"))
    first = await route.small.claim()
    await route.small.append(first, b'{"n":1}', b'{"n":2}', seq=2)
    await route.hand_on(first)
    second = await route.large.claim()
    await route.large.append(second, b'{"n":3}', b'{"n":4}', seq=2)
    await route.large.finish(second, whole_answer("x"))
    events = (await watching).text
    assert events.index("event: reset") > events.index('{"n":2}')
    assert events.index('{"n":3}') > events.index("event: reset")
    assert events.count("event: done") == 1
    for token, rest in ((first.token, ["3", "4"]), (second.token, ["4"])):
        after = {"last-event-id": f"{token}-1"}
        again = (await route.served.http.get(f"/v1/jobs/{document['id']}/events", headers=after)).text
        assert [n for n in "1234" if f'{{"n":{n}}}' in again][-len(rest) :] == rest
        assert '{"n":1}' not in again


async def test_a_cancellation_follows_the_link(route: Route) -> None:
    document = (await route.served.http.post("/v1/jobs", json={**ask(), "class": "P1"})).json()
    await route.hand_on(await route.small.claim())
    lease = await route.large.claim()
    answer = (await route.served.http.delete(f"/v1/jobs/{document['id']}")).json()
    assert (answer["id"], answer["status"]) == (document["id"], "cancelled")
    assert (await route.served.producer.get(lease.job_id)).status is Status.CANCELLED


async def test_a_caller_that_leaves_takes_the_successor_along(route: Route) -> None:
    asked = await route.post(ask(stream=True))
    await route.hand_on(await route.small.claim())
    lease = await route.large.claim()
    await route.large.append(lease, b'{"choices":[]}', seq=1)
    asked.cancel()

    async def is_gone() -> bool:
        return (await route.served.producer.get(lease.job_id)).status is Status.CANCELLED

    await wait_until(is_gone, what="the successor is cancelled")


async def test_a_deadline_that_passes_after_the_escalation_is_a_504(route: Route) -> None:
    headers = {"x-headway-deadline": "1.5"}
    asked = asyncio.create_task(route.served.http.post("/v1/chat/completions", json=ask(), headers=headers))
    await route.hand_on(await route.small.claim())
    assert (await asked).status_code == 504


async def test_without_a_worker_of_the_wanted_pool_the_other_one_answers_and_it_is_said(
    settings: Settings, redis_url: str
) -> None:
    async with serve(settings, config=config(target={"share_large": 1.0})) as served:
        small = await ScriptedWorker.join(redis_url, "small")
        asked = asyncio.create_task(served.http.post("/v1/chat/completions", json=ask()))
        lease = await small.claim()
        assert lease.heir == ""
        await small.finish(lease, whole_answer("hello"))
        headers = (await asked).headers
        assert (headers["x-headway-pool"], headers["x-headway-degraded"]) == ("small", "large")
        await small.close()


async def test_a_large_pool_that_is_behind_gets_only_what_needs_it_most(
    settings: Settings, redis_url: str
) -> None:
    async with serve(settings, config=config(target={"share_large": 1.0}, slo_s=1.0)) as served:
        workers = [await ScriptedWorker.join(redis_url, pool) for pool in ("small", "large")]
        await served.fresh()
        assert (await submitted(served, ask()))["pool"] == "large"
        waiting = ("queued:2", 100, "queued_ms:2", 10_000_000)
        await served.pipe.command("HSET", PoolKeys("large").named("stats"), *waiting)
        await served.fresh()
        document = await submitted(served, ask())
        assert document["pool"] == "small"
        assert document["route"].endswith(" load")
        for worker in workers:
            await worker.close()


async def test_an_idempotency_key_finds_the_answer_of_the_second_pass(route: Route) -> None:
    headers = {"idempotency-key": "k1"}
    asked = asyncio.create_task(route.served.http.post("/v1/chat/completions", json=ask(), headers=headers))
    await route.hand_on(await route.small.claim())
    await route.large.finish(await route.large.claim(), whole_answer("from the large one"))
    first = await asked
    again = await route.served.http.post("/v1/chat/completions", json=ask(), headers=headers)
    assert again.json() == first.json()
    assert again.headers["x-headway-job"] == first.headers["x-headway-job"]


async def test_a_routed_request_is_read_once_for_its_route_and_its_forecast(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    plain = LearnedEstimator.forecast

    def noted(self: LearnedEstimator, *args: Any, features: Features | None = None, **more: Any) -> Forecast:
        seen.append(features)
        return plain(self, *args, features=features, **more)

    monkeypatch.setattr(LearnedEstimator, "forecast", noted)
    await submitted(route.served, ask())
    await submitted(route.served, ask() | {"model": "small"})
    assert seen == [extract(ask()), None]
