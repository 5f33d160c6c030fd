"""Health, readiness, metrics, the fleet, the models, the page and the description of it all."""

import asyncio
import re

import orjson
import pytest

from api.documents import balance
from broker.fleet import WorkerRecord
from tests.api.harness import ScriptedWorker, Served, chat, whole_answer


async def test_alive_needs_nothing(served: Served) -> None:
    assert (await served.http.get("/healthz")).json() == {"status": "ok"}


async def test_ready_means_a_ready_worker_in_every_configured_pool(
    served: Served, worker: ScriptedWorker, redis_url: str
) -> None:
    response = await served.http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["reasons"] == ["no ready worker in the pool 'large'"]
    other = await ScriptedWorker.join(redis_url, "large", state="starting")
    assert (await served.http.get("/readyz")).status_code == 503
    await other.announce("ready")
    assert (await served.http.get("/readyz")).status_code == 200
    await other.close()


async def test_metrics_tell_queue_workers_ends_and_tokens(served: Served, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(served.http.post("/v1/chat/completions", json=chat()))
    await worker.finish(await worker.claim(), whole_answer("ok"))
    await asking
    waiting = (await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}))).json()["id"]
    await served.pipe.command("HINCRBY", "hw:{small}:stats", "reconciled:queued_nowhere", 2)
    await served.fresh()
    text = (await served.http.get("/metrics")).text
    for line in (
        'headway_queue_jobs{class="P1",pool="small"} 1.0',
        'headway_running_jobs{pool="small"} 0.0',
        'headway_workers{pool="small",state="ready"} 1.0',
        'headway_workers{pool="large",state="ready"} 0.0',
        'headway_jobs_total{class="P0",pool="small",status="succeeded"} 1.0',
        'headway_jobs_accepted_total{class="P1",pool="small"} 1.0',
        'headway_tokens_total{kind="output",pool="small"} 2.0',
        'headway_reconciled_total{pool="small",what="queued_nowhere"} 2.0',
    ):
        assert line in text
    assert "headway_api_resident_memory_bytes" in text
    await served.http.delete(f"/v1/jobs/{waiting}")


async def test_the_fleet_names_pools_workers_and_what_waits(served: Served, worker: ScriptedWorker) -> None:
    waiting = (await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}))).json()["id"]
    await served.fresh()
    fleet = (await served.http.get("/v1/fleet")).json()
    small, large = fleet["pools"]
    assert (small["pool"], large["pool"]) == ("small", "large")
    assert small["waiting"] == {"P0": 0, "P1": 1, "P2": 0, "P3": 0}
    assert (small["slots"], small["busy_slots"], small["balance"]) == (4, 1, 1.0)
    assert [w["id"] for w in small["workers"]] == ["scripted-small"]
    assert small["balance_detail"]["busy"] == {"max_over_mean": 1.0, "variation": 0.0, "jain": 1.0}
    assert (small["balance_detail"]["uneven"], small["balance_detail"]["why"]) == (False, "")
    assert "SmolLM2" in small["note"]
    assert "SmolLM2" in large["note"]
    assert fleet["balance"] == 1.0
    await served.http.delete(f"/v1/jobs/{waiting}")


def test_balance_is_max_over_mean_of_the_busy_shares() -> None:
    def busy(slots: int, busy_slots: int) -> WorkerRecord:
        return WorkerRecord("w", "p", "e", "m", slots, busy_slots, "ready", 1, "h")

    # shares 0.5, 0.25, 0.75: mean 0.5, max 0.75
    assert balance([busy(4, 2), busy(8, 2), busy(4, 3)]) == 1.5
    assert balance([busy(4, 0), busy(4, 0)]) is None
    assert balance([]) is None


async def test_models_are_pools_and_aliases_and_say_when_they_are_embedded(
    served: Served, worker: ScriptedWorker
) -> None:
    async with served.openai() as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("gpt-small")
    assert listed == ["small", "gpt-small", "large"]
    assert one.owned_by == "headway"
    headway = one.to_dict()["headway"]
    assert headway == {
        "pool": "small",
        "engine": "scripted",
        "workers": 1,
        "embedded": True,
        "note": "embedded SmolLM2-135M-Instruct until you name a real engine in headway.yaml",
    }


async def test_the_page_is_one_file_that_loads_nothing_from_elsewhere(served: Served) -> None:
    response = await served.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "/v1/overview/events" in response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", response.text) == []


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/chat/completions", "post"),
        ("/v1/completions", "post"),
        ("/v1/embeddings", "post"),
        ("/v1/models", "get"),
        ("/v1/models/{model}", "get"),
        ("/v1/jobs", "post"),
        ("/v1/jobs", "get"),
        ("/v1/jobs/{job_id}", "get"),
        ("/v1/jobs/{job_id}", "delete"),
        ("/v1/jobs/{job_id}/events", "get"),
        ("/v1/jobs/{job_id}/redrive", "post"),
        ("/v1/fleet", "get"),
        ("/healthz", "get"),
        ("/readyz", "get"),
        ("/metrics", "get"),
    ],
)
async def test_every_endpoint_is_described(served: Served, *, path: str, method: str) -> None:
    document = orjson.loads((await served.http.get("/openapi.json")).content)
    assert method in document["paths"][path]


async def test_bad_input_is_described_as_400_as_it_is_answered(served: Served) -> None:
    paths = orjson.loads((await served.http.get("/openapi.json")).content)["paths"]
    statuses = paths["/v1/jobs"]["get"]["responses"].keys()
    assert "400" in statuses
    assert "422" not in statuses


async def test_paused_pool_accepts_and_gives_nothing_until_it_is_resumed(
    served: Served, worker: ScriptedWorker
) -> None:
    paused = await served.http.post("/v1/fleet/small/pause")
    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    job_id = (await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}))).json()["id"]
    assert (await worker.consumer.claim(1)).leases == []
    assert (await served.http.post("/v1/fleet/small/resume")).json()["paused"] is False
    lease = await worker.claim()
    assert lease.job_id == job_id
    await worker.finish(lease, whole_answer("ok"))
    assert (await served.http.post("/v1/fleet/nowhere/pause")).status_code == 404
