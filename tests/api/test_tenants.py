"""Tenants by their keys: whose a job is, what it gets of a class, and how many run at a time."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from broker.config import Config, ModelConfig
from broker.settings import Settings
from broker.tenants import TenantConfig
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer
from tests.broker.jobs import end_everything

TENANTS = (
    TenantConfig(name="even", keys=(SecretStr("even-key"),)),
    TenantConfig(name="odd", keys=(SecretStr("odd-key"),)),
    TenantConfig(name="triple", keys=(SecretStr("triple-key"),), weight=3.0),
    TenantConfig(name="narrow", keys=(SecretStr("narrow-key"),), max_running=2, default_class="P1"),
    TenantConfig(name="later", keys=(SecretStr("later-key"),), default_class="P3"),
)
CONFIG = Config(models=(ModelConfig(pool="small"),), tenants=TENANTS)


@pytest.fixture
async def served(redis_url: str) -> AsyncIterator[Served]:
    settings = Settings(
        redis_url=redis_url, api_keys=(SecretStr("default-key"),), predictor="simple"
    )  # equal costs
    async with serve(settings, config=CONFIG) as running:
        yield running
        await end_everything(running.pipe)


async def submit(served: Served, tenant: str, n: int = 1, **fields: object) -> list[str]:
    ids = []
    for _ in range(n):
        asked = chat(max_tokens=50, **fields)
        headers = {"Authorization": f"Bearer {tenant}-key"}
        answer = await served.http.post("/v1/jobs", json=asked, headers=headers)
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
    return ids


async def claimed(worker: ScriptedWorker, n: int) -> Counter[str]:
    """By tenant; each is finished at once."""
    tenants = []
    for _ in range(n):
        lease = await worker.claim()
        tenants.append(lease.tenant)
        await worker.finish(lease, whole_answer("ok"))
    return Counter(tenants)


@pytest.mark.parametrize(("rival", "share"), [("odd", 10), ("triple", 15), ("default", 10)])
async def test_tenants_share_a_class_by_their_weights(
    served: Served, worker: ScriptedWorker, *, rival: str, share: int
) -> None:
    """One has submitted all of its jobs before the other comes. Of the next 20 claims each gets its part, give or take
    the job with which the first was ahead."""
    await submit(served, "even", 30, **{"class": "P1"})
    await submit(served, rival, 30, **{"class": "P1"})
    found = await claimed(worker, 20)
    assert abs(found[rival] - share) <= 1, found
    assert found["even"] + found[rival] == 20


async def test_tenant_runs_no_more_than_its_cap(served: Served, worker: ScriptedWorker) -> None:
    await submit(served, "narrow", 5)
    await submit(served, "odd", 1, **{"class": "P1"})
    leases = (await worker.consumer.claim(10)).leases
    assert Counter(lease.tenant for lease in leases) == {"narrow": 2, "odd": 1}
    mine = [lease for lease in leases if lease.tenant == "narrow"]
    await worker.finish(mine[0], whole_answer("ok"))
    assert [lease.tenant for lease in (await worker.consumer.claim(10)).leases] == ["narrow"]


@pytest.mark.parametrize(
    ("tenant", "fields", "header", "expected"),
    [
        ("narrow", {}, None, "P1"),
        ("later", {}, None, "P3"),
        ("odd", {}, None, "P2"),
        ("later", {"service_tier": "flex"}, None, "P2"),
        ("later", {}, "P0", "P0"),
        ("later", {"class": "P1"}, "P0", "P1"),
    ],
)
async def test_tenants_class_is_taken_where_the_request_names_none(
    served: Served, *, tenant: str, fields: dict[str, object], header: str | None, expected: str
) -> None:
    headers = {"Authorization": f"Bearer {tenant}-key"} | ({"X-Headway-Class": header} if header else {})
    answer = await served.http.post("/v1/jobs", json=chat(**fields), headers=headers)
    assert answer.json()["class"] == expected


async def test_job_knows_its_tenant_and_an_unknown_key_is_401(served: Served) -> None:
    [job_id] = await submit(served, "odd", 1, **{"class": "P1"})
    assert (await served.producer.get(job_id)).tenant == "odd"
    [own] = await submit(served, "default", 1, **{"class": "P1"})
    assert (await served.producer.get(own)).tenant == "default"
    answer = await served.http.post("/v1/jobs", json=chat(), headers={"Authorization": "Bearer nobody"})
    assert answer.status_code == 401


async def test_same_idempotency_key_of_two_tenants_is_two_jobs(served: Served) -> None:
    ids = set()
    for tenant in ("odd", "even", "odd"):
        headers = {"Authorization": f"Bearer {tenant}-key", "Idempotency-Key": "same"}
        answer = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=headers)
        ids.add(answer.json()["id"])
    assert len(ids) == 2


@pytest.mark.parametrize(("tenant", "expected"), [("later", "P3"), ("narrow", "P2")])
async def test_batch_remembers_its_tenant_and_takes_its_class_if_it_is_one_for_batches(
    served: Served, *, tenant: str, expected: str
) -> None:
    headers = {"Authorization": f"Bearer {tenant}-key"}
    upload = await served.http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}\n")}, headers=headers
    )
    asked = {
        "input_file_id": upload.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    answer = await served.http.post("/v1/batches", json=asked, headers=headers)
    assert answer.json()["class"] == expected
    key = f"hw:batch:{{{answer.json()['id']}}}"
    assert await served.pipe.command("HGET", key, "tenant") == tenant.encode()
