"""Refusals over HTTP: which limit, when to come again, and when a job would start."""

import time
from collections.abc import AsyncIterator

import pytest

from broker.class_limits import ClassConfig
from broker.config import Config, ModelConfig
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer

CHAT = "/v1/chat/completions"
TOKENS = 100  # two predicted seconds (predictor.estimator.Speed)
LIMITED = Config(
    models=(
        ModelConfig(pool="small", classes={"P1": ClassConfig(max_queued=2)}),
        ModelConfig(pool="large"),
    ),
    classes={"P1": ClassConfig(max_queued_s=5.0)},
)


@pytest.fixture
async def limited(redis_url: str) -> AsyncIterator[Served]:
    async with serve(Settings(redis_url=redis_url, predictor="simple"), config=LIMITED) as running:
        yield running


async def cancel_all(served: Served) -> None:
    for job in (await served.http.get("/v1/jobs?status=queued&limit=100")).json()["data"]:
        await served.http.delete(f"/v1/jobs/{job['id']}")


def body(service_class: str = "P1", **fields: object) -> dict[str, object]:
    return chat(**{"class": service_class}, max_tokens=TOKENS, **fields)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("small", "2 P1 jobs wait in the pool 'small', which takes 2"),
        ("large", "P1 jobs of 4 predicted seconds wait in the pool 'large', which takes 5"),
    ],
)
async def test_full_class_is_429_and_says_which_how_much_and_the_limit(
    limited: Served, *, model: str, said: str
) -> None:
    for _ in range(2):
        assert (await limited.http.post("/v1/jobs", json=body(model=model))).status_code == 202
    refused = await limited.http.post("/v1/jobs", json=body(model=model))
    error = refused.json()["error"]
    assert refused.status_code == 429
    assert (error["type"], error["code"], error["message"]) == ("rate_limit_error", "queue_full", said)
    assert int(refused.headers["retry-after"]) >= 1
    assert (await limited.http.post("/v1/jobs", json=body("P2", model=model))).status_code == 202
    await cancel_all(limited)


async def test_refused_chat_leaves_no_job(limited: Served, worker: ScriptedWorker) -> None:
    for _ in range(2):
        await limited.http.post("/v1/jobs", json=body())
    refused = await limited.http.post(CHAT, json=chat(), headers={"X-Headway-Class": "P1"})
    assert refused.status_code == 429
    assert "x-headway-job" not in refused.headers, "it names no job that nobody can ask for"
    assert refused.headers["x-headway-pool"] == "small"
    keyed = await limited.http.post(
        CHAT, json=chat(), headers={"X-Headway-Class": "P1", "Idempotency-Key": "full"}
    )
    assert (keyed.status_code, "x-headway-job" in keyed.headers) == (429, False)
    listed = (await limited.http.get("/v1/jobs?limit=100")).json()["data"]
    assert len([job for job in listed if job["status"] == "queued"]) == 2
    await cancel_all(limited)


async def drain(served: Served, worker: ScriptedWorker, n: int) -> None:
    """Has so many jobs claimed and ended between two looks of the API."""
    await served.fresh()
    for _ in range(n):
        await worker.finish(await worker.claim(), whole_answer("ok"))
    await served.fresh()


async def test_retry_after_follows_the_measured_drain(redis_url: str, worker: ScriptedWorker) -> None:
    """Five jobs have to leave, of 100 that wait, at the rate at which two have left since there was a queue."""
    async with serve(
        Settings(redis_url=redis_url, max_queued=100, predictor="simple"), config=LIMITED
    ) as served:
        begun = time.monotonic()
        for _ in range(100):
            await served.http.post("/v1/jobs", json=body("P0"))
        await drain(served, worker, 2)
        longest_s = 5 / (2 / (time.monotonic() - begun)) + 1
        for _ in range(2):
            await served.http.post("/v1/jobs", json=body("P0"))
        refused = await served.http.post("/v1/jobs", json=body("P0"))
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= longest_s
        await cancel_all(served)


async def test_start_behind_the_deadline_is_refused_once_that_is_known(
    redis_url: str, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(Settings(redis_url=redis_url, predictor="simple"), config=LIMITED) as served:
        begun = time.monotonic()
        for _ in range(40):
            await served.http.post("/v1/jobs", json=body("P0"))
        late = {"X-Headway-Deadline": "0.02"}
        unknown = await served.http.post(CHAT, json=chat(), headers=late)
        assert unknown.status_code == 504, "nothing is measured: no guess"
        monkeypatch.setattr("api.drain.ENOUGH_S", 0.0)
        await drain(served, worker, 2)
        longest_s = 38 / (2 / (time.monotonic() - begun)) + 1
        refused = await served.http.post(CHAT, json=chat(), headers=late)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (429, "deadline_unreachable")
        assert "x-headway-job" not in refused.headers
        assert error["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= longest_s
        jumping = await served.http.post(CHAT, json=chat(priority=-1), headers=late)
        assert jumping.status_code == 504, "it would go before all of them"
        polled = await served.http.post("/v1/jobs", json=body("P0", deadline_s=0.02))
        assert polled.status_code == 202, "nobody waits for it"
        assert (
            await served.http.post(CHAT, json=chat(), headers={"X-Headway-Class": "P2", **late})
        ).status_code == 504
        await cancel_all(served)


async def test_position_and_start_are_shown_while_a_job_waits(served: Served, worker: ScriptedWorker) -> None:
    """The worker has four slots, one of them busy; each job is predicted to run for two seconds."""
    jobs = [(await served.http.post("/v1/jobs", json=body())).json() for _ in range(5)]
    assert [job["position"] for job in jobs] == [0, 1, 2, 3, 4]
    prompt_s = jobs[0]["predicted"]["run_s"] - 2.0
    starts = [job["predicted"]["start_s"] for job in jobs]
    assert starts[:3] == [0.0, 0.0, 0.0]
    assert starts[3:] == pytest.approx([n * (2.0 + prompt_s) / 4 for n in (3, 4)], abs=0.01)
    await worker.claim()
    shown = (await served.http.get(f"/v1/jobs/{jobs[4]['id']}")).json()
    assert (shown["position"], shown["predicted"]["start_s"]) == (3, pytest.approx(starts[3], abs=0.01))
    await cancel_all(served)
    await served.http.delete(f"/v1/jobs/{worker.leases[0].job_id}")
