"""A pool that nobody serves: its requests go to its fallback and say so, unless they would rather fail or wait."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import SecretStr

from api import outages
from api.outages import LEAST_SHARE, OUT_S, RETURN_S, Outages
from broker.config import Config, ModelConfig
from broker.errors import ConfigError
from broker.fleet import PoolView, WorkerRecord
from broker.keys import PoolKeys
from broker.settings import Settings
from broker.tenants import TenantConfig
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer
from tests.conditions import wait_until

CHAT = "/v1/chat/completions"
MODELS = (ModelConfig(pool="small"), ModelConfig(pool="large", fallback="small"), ModelConfig(pool="lonely"))


def view(*workers: tuple[str, str]) -> PoolView:
    """Of workers in such states, with such breakers."""
    records = [
        WorkerRecord(f"w{n}", "large", "e", "m", 1, 0, state, 1, "h", breaker=breaker)
        for n, (state, breaker) in enumerate(workers)
    ]
    return PoolView("large", records, [0] * 4, 0, 0, 0)


@pytest.mark.parametrize(
    ("workers", "out"),
    [
        ((), True),
        ((("unavailable", "closed"),), True),
        ((("ready", "open"), ("draining", "closed")), True),
        ((("ready", "half-open"),), False),
        ((("starting", "closed"),), False),
        ((("paused", "closed"),), False),
        ((("unavailable", "closed"), ("ready", "closed")), False),
    ],
)
def test_a_pool_is_out_when_no_worker_may_be_given_a_job(
    workers: tuple[tuple[str, str], ...], out: bool
) -> None:
    assert view(*workers).out is out


def test_a_short_gap_changes_nothing_and_after_an_outage_the_pool_gets_its_share_bit_by_bit() -> None:
    seen, here, gone = Outages(), view(("ready", "closed")), view()
    assert [seen.share(here, now=0.0), seen.share(gone, now=1.0), seen.share(here, now=2.0)] == [
        1.0,
        1.0,
        1.0,
    ]
    assert seen.share(gone, now=10.0) == 1.0
    assert seen.share(gone, now=10.0 + OUT_S) == 0.0
    back = 20.0
    shares = [seen.share(here, now=back + part * RETURN_S) for part in (0.0, 0.25, 0.5, 1.0, 2.0)]
    assert shares == [LEAST_SHARE, 0.25, 0.5, 1.0, 1.0]


def test_a_pool_that_comes_up_for_the_first_time_gets_everything_at_once() -> None:
    seen = Outages()
    assert [seen.share(view(), now=0.0), seen.share(view(), now=OUT_S)] == [1.0, 0.0]
    assert seen.share(view(("ready", "closed")), now=OUT_S + 1.0) == 1.0


def test_fallback_must_be_another_pool() -> None:
    for name in ("large", "nowhere"):
        with pytest.raises((ConfigError, ValueError), match="fall back"):
            Config(models=(ModelConfig(pool="large", fallback=name),))


@pytest.fixture
async def api(
    settings: Settings, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    """It takes a pool to be out and back at once, and rescues without delay."""
    monkeypatch.setattr(outages, "OUT_S", 0.0)
    monkeypatch.setattr(outages, "LEAST_SHARE", 1.0)
    monkeypatch.setattr(outages, "EVERY_S", 0.02)
    patient = settings.model_copy(update={"ping_s": 60.0})
    async with serve(patient, config=Config(models=MODELS)) as running:
        yield running


async def asked(api: Served, worker: ScriptedWorker, model: str = "large", **headers: str) -> httpx.Response:
    """The answer to a request that the worker gets."""
    names = {f"X-Headway-{name}": value for name, value in headers.items()}
    asking = asyncio.create_task(api.http.post(CHAT, json=chat(model=model), headers=names))
    await worker.finish(await worker.claim(), whole_answer("from the small one"))
    return await asking


async def test_requests_for_a_pool_that_is_out_are_answered_by_its_fallback_and_say_so(
    api: Served, worker: ScriptedWorker
) -> None:
    response = await asked(api, worker)
    assert response.status_code == 200
    headers = response.headers
    assert (headers["x-headway-pool"], headers["x-headway-degraded"]) == ("small", "large")
    assert "x-headway-degraded" not in (await asked(api, worker, model="small")).headers


async def test_jobs_say_so_too(api: Served, worker: ScriptedWorker) -> None:
    document = (await api.http.post("/v1/jobs", json=chat(model="large", **{"class": "P1"}))).json()
    assert (document["pool"], document["degraded"], document["model"]) == ("small", "large", "large")
    assert (await api.http.get(f"/v1/jobs/{document['id']}")).json()["degraded"] == "large"
    await api.http.delete(f"/v1/jobs/{document['id']}")


async def test_who_would_rather_fail_is_told_at_once_that_nobody_serves_the_pool(
    api: Served, worker: ScriptedWorker
) -> None:
    headers = {"X-Headway-Fallback": "fail"}
    for path, body in ((CHAT, chat(model="large")), ("/v1/jobs", chat(model="large"))):
        response = await api.http.post(path, json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
        assert "'large'" in response.json()["error"]["message"]


async def test_who_would_rather_wait_waits_and_is_not_rescued(
    api: Served, worker: ScriptedWorker, redis_url: str
) -> None:
    asking = asyncio.create_task(
        api.http.post(CHAT, json=chat(model="large"), headers={"X-Headway-Fallback": "wait"})
    )
    large = await ScriptedWorker.join(redis_url, "large")
    await large.finish(await large.claim(), whole_answer("from the large one"))
    response = await asking
    assert (response.status_code, response.headers["x-headway-pool"]) == (200, "large")
    await large.close()


async def test_a_pool_without_a_fallback_is_503_and_named(api: Served, worker: ScriptedWorker) -> None:
    response = await api.http.post(CHAT, json=chat(model="lonely"))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
    assert "'lonely'" in response.json()["error"]["message"]


async def test_the_fleet_and_the_metrics_show_breakers(api: Served, worker: ScriptedWorker) -> None:
    breaker = PoolKeys("small").breaker("scripted-small")
    await api.pipe.command("HSET", breaker, "state", "half-open")
    await api.pipe.command("PEXPIRE", breaker, 5000)
    await api.fresh()
    pools = (await api.http.get("/v1/fleet")).json()["pools"]
    assert [w["breaker"] for pool in pools for w in pool["workers"]] == ["half-open"]
    metrics = (await api.http.get("/metrics")).text
    assert 'headway_breaker_events_total{event="opened",pool="small"} 0.0' in metrics


async def test_an_unknown_wish_is_refused(api: Served) -> None:
    response = await api.http.post(CHAT, json=chat(), headers={"X-Headway-Fallback": "maybe"})
    assert response.status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_what_waits_in_a_pool_that_goes_out_is_answered_once_by_its_fallback(
    api: Served, worker: ScriptedWorker, redis_url: str, stream: bool
) -> None:
    large = await ScriptedWorker.join(redis_url, "large")
    await api.fresh()
    asking = asyncio.create_task(api.http.post(CHAT, json=chat(model="large", stream=stream)))

    async def queued() -> bool:
        assert not asking.done(), asking.result().text
        return bool(await api.pipe.command("ZCARD", PoolKeys("large").ready(0)))

    await wait_until(queued)
    await large.announce("unavailable")
    await api.fresh()
    lease = await worker.claim()
    if stream:
        await worker.stream(lease, "from the small one")
    else:
        await worker.finish(lease, whole_answer("from the small one"))
    response = await asking
    assert response.text.count("from the small one") == 1
    headers = response.headers
    assert (headers["x-headway-pool"], headers["x-headway-degraded"]) == ("small", "large")
    assert "x-headway-escalated" not in headers
    document = (await api.http.get(f"/v1/jobs/{headers['x-headway-job']}")).json()
    assert (document["status"], document["pool"], document["degraded"]) == ("succeeded", "small", "large")

    async def counted() -> bool:
        return 'headway_rescued_jobs_total{pool="large"} 1.0' in (await api.http.get("/metrics")).text

    await wait_until(counted)
    await large.close()


async def test_a_request_that_comes_before_the_pool_counts_as_out_waits_and_is_rescued(
    settings: Settings, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "OUT_S", 0.2)
    monkeypatch.setattr(outages, "EVERY_S", 0.02)
    async with serve(settings, config=Config(models=MODELS)) as api:
        response = await asked(api, worker)
    assert response.status_code == 200
    assert (response.headers["x-headway-pool"], response.headers["x-headway-degraded"]) == ("small", "large")


async def test_a_stream_that_had_to_begin_before_says_so_in_a_comment(
    settings: Settings, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "OUT_S", 0.0)
    monkeypatch.setattr(outages, "EVERY_S", 0.02)
    large = await ScriptedWorker.join(settings.redis_url, "large")
    async with (
        serve(settings, config=Config(models=MODELS)) as api,
        api.http.stream("POST", CHAT, json=chat(model="large", stream=True)) as response,
    ):
        await large.announce("unavailable")
        await api.fresh()
        await worker.stream(await worker.claim(), "from the small one")
        text = (await response.aread()).decode()
    assert text.index(": degraded large\n\n") < text.index("from the small one")
    await large.close()


async def test_a_tenant_may_have_its_requests_fail_instead(
    settings: Settings, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "OUT_S", 0.0)
    proud = TenantConfig(name="proud", keys=(SecretStr("secret"),), fallback="fail")
    async with serve(settings, config=Config(models=MODELS, tenants=(proud,))) as api:
        headers = {"Authorization": "Bearer secret"}

        async def refused() -> bool:
            response = await api.http.post("/v1/jobs", json=chat(model="large"), headers=headers)
            if response.status_code == 202:
                await api.http.delete(f"/v1/jobs/{response.json()['id']}", headers=headers)
            return response.status_code == 503

        await wait_until(refused)
