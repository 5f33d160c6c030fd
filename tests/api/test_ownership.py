"""A tenant finds its own jobs, files, batches and streams; those of others are not there, whatever is done to them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from broker.config import Config, ModelConfig
from broker.settings import Settings
from broker.tenants import TenantConfig
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer

TENANTS = (
    TenantConfig(name="mine", keys=(SecretStr("mine-key"),)),
    TenantConfig(name="other", keys=(SecretStr("other-key"),)),
    TenantConfig(name="ops", keys=(SecretStr("ops-key"),), admin=True),
    TenantConfig(name="bulk", keys=(SecretStr("bulk-key"),), classes=("P2", "P3"), pools=("small",)),
)
CONFIG = Config(models=(ModelConfig(pool="small"), ModelConfig(pool="large")), tenants=TENANTS)


@pytest.fixture
async def served(redis_url: str, tmp_path: Any) -> AsyncIterator[Served]:
    async with serve(Settings(redis_url=redis_url, home=tmp_path), config=CONFIG) as running:
        yield running


def auth(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}-key"} | more


async def submit(served: Served, key: str) -> str:
    answer = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=auth(key))
    return str(answer.json()["id"])


async def test_job_of_another_is_not_there(served: Served) -> None:
    job_id = await submit(served, "mine")
    assert (await served.http.get(f"/v1/jobs/{job_id}", headers=auth("other"))).status_code == 404
    for key in ("other", "ops"):
        for method, path, body in [
            ("GET", "/events", None),
            ("DELETE", "", None),
            ("POST", "/redrive", None),
            ("POST", "/feedback", {"rating": "good"}),
        ]:
            answer = await served.http.request(
                method, f"/v1/jobs/{job_id}{path}", json=body, headers=auth(key)
            )
            assert answer.status_code == 404, (key, method, path)
            assert answer.json()["error"]["code"] == "job_not_found"
    assert await served.status(job_id) == "queued"
    assert (await served.http.get(f"/v1/jobs/{job_id}", headers=auth("mine"))).status_code == 200
    assert (await served.http.delete(f"/v1/jobs/{job_id}", headers=auth("mine"))).status_code == 200


async def test_an_operator_reads_what_happened_to_anybodys_job_and_not_what_was_said(
    served: Served, redis_url: str
) -> None:
    body = chat(**{"class": "P1", "metadata": {"note": "private"}})
    job_id = (await served.http.post("/v1/jobs", json=body, headers=auth("mine"))).json()["id"]
    worker = await ScriptedWorker.join(redis_url, "small")
    await worker.finish(await worker.claim(), whole_answer("private"))
    await worker.close()
    mine, seen = [
        (await served.http.get(f"/v1/jobs/{job_id}", headers=auth(key))).json() for key in ("mine", "ops")
    ]
    assert mine["metadata"] == {"note": "private"}
    assert "private" in str(mine["result"])
    assert "private" not in str(seen)
    assert (seen["status"], seen["story"], seen["usage"]) == ("succeeded", mine["story"], mine["usage"])


async def test_listing_shows_a_tenants_own_also_behind_many_of_others(served: Served) -> None:
    own = await submit(served, "mine")
    others = [await submit(served, "other") for _ in range(8)]
    found = (await served.http.get("/v1/jobs?limit=2", headers=auth("mine"))).json()
    assert [job["id"] for job in found["data"]] == [own]
    assert found["has_more"] is False
    assert (await served.http.get("/v1/jobs", headers=auth("ops"))).json()["data"] == []
    for job_id in (own, *others):
        await served.producer.cancel(job_id)


async def test_operator_sees_and_redrives_dead_letters_of_all(served: Served, worker: ScriptedWorker) -> None:
    job_id = await submit(served, "mine")
    await worker.bury(await worker.claim(), b'{"message":"broken"}')
    listing = "/v1/jobs?dead=true"
    assert [j["id"] for j in (await served.http.get(listing, headers=auth("ops"))).json()["data"]] == [job_id]
    assert (await served.http.get(listing, headers=auth("other"))).json()["data"] == []
    assert (await served.http.post(f"/v1/jobs/{job_id}/redrive", headers=auth("other"))).status_code == 404
    again = await served.http.post(f"/v1/jobs/{job_id}/redrive", headers=auth("ops"))
    assert again.status_code == 202
    assert (await served.producer.get(again.json()["id"])).tenant == "mine"
    await served.producer.cancel(again.json()["id"])


async def upload(
    served: Served, key: str, content: bytes = b"{}\n", *, headers: dict[str, str] | None = None
) -> Any:
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    return await served.http.post("/v1/files", headers=auth(key) | (headers or {}), **form)  # type: ignore[arg-type]


async def test_file_of_another_is_not_there(served: Served) -> None:
    file_id = (await upload(served, "mine")).json()["id"]
    for method, path in [("GET", ""), ("GET", "/content"), ("DELETE", "")]:
        answer = await served.http.request(method, f"/v1/files/{file_id}{path}", headers=auth("other"))
        assert answer.status_code == 404, (method, path)
    assert (await served.http.get("/v1/files", headers=auth("other"))).json()["data"] == []
    assert len((await served.http.get("/v1/files", headers=auth("mine"))).json()["data"]) == 1
    assert (await served.http.get(f"/v1/files/{file_id}/content", headers=auth("mine"))).content == b"{}\n"


async def create_batch(served: Served, key: str, file_id: str, **more: str) -> Any:
    asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return await served.http.post("/v1/batches", json=asked | more, headers=auth(key))


async def test_batch_of_another_is_not_there_and_takes_no_file_of_another(served: Served) -> None:
    file_id = (await upload(served, "mine")).json()["id"]
    assert (await create_batch(served, "other", file_id)).status_code == 404
    batch_id = (await create_batch(served, "mine", file_id)).json()["id"]
    for method, path in [("GET", ""), ("POST", "/cancel")]:
        answer = await served.http.request(method, f"/v1/batches/{batch_id}{path}", headers=auth("other"))
        assert answer.status_code == 404
    assert (await served.http.get("/v1/batches", headers=auth("other"))).json()["data"] == []
    assert len((await served.http.get("/v1/batches", headers=auth("mine"))).json()["data"]) == 1


async def test_upload_under_a_key_is_one_file_and_another_content_is_409(served: Served) -> None:
    again = {"Idempotency-Key": "once"}
    first, second = [(await upload(served, "mine", headers=again)).json()["id"] for _ in range(2)]
    assert first == second
    refused = await upload(served, "mine", b"[]\n", headers=again)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert (await upload(served, "other", b"[]\n", headers=again)).status_code == 200
    assert len((await served.http.get("/v1/files", headers=auth("mine"))).json()["data"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"class": "P0"}, "class"), ({"class": "P2", "model": "large"}, "model")],
)
async def test_key_may_be_used_for_what_it_is_made_for(
    served: Served, *, fields: dict[str, object], param: str
) -> None:
    answer = await served.http.post("/v1/jobs", json=chat(**fields), headers=auth("bulk"))
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "insufficient_scope"
    assert answer.json()["error"]["param"] == param
    fine = await served.http.post("/v1/jobs", json=chat(**{"class": "P3"}), headers=auth("bulk"))
    assert fine.status_code == 202
    await served.producer.cancel(fine.json()["id"])
    attached = await served.http.post("/v1/chat/completions", json=chat(), headers=auth("bulk"))
    assert attached.status_code == 403


async def test_batch_remembers_which_pools_its_key_may_use(served: Served) -> None:
    file_id = (await upload(served, "bulk")).json()["id"]
    batch_id = (await create_batch(served, "bulk", file_id)).json()["id"]
    assert await served.pipe.command("HGET", f"hw:batch:{{{batch_id}}}", "pools") == b"small"


@pytest.mark.parametrize("path", ["/v1/fleet/small/pause", "/v1/fleet/small/drain", "/admin/reload"])
async def test_steering_needs_the_admin_scope(served: Served, path: str) -> None:
    assert (await served.http.post(path, headers=auth("mine"))).status_code == 403
    assert (await served.http.post(path, headers=auth("ops"))).status_code == 200
    await served.http.post("/v1/fleet/small/resume", headers=auth("ops"))
