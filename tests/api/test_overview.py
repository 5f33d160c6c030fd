"""The document behind the live page and `headway top`: what is in it, who may see it, and that many viewers cost one."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from api.costs import costs
from api.overview import Overviews
from broker import notable
from broker.notable import Notable
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, serve

CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}


async def events(served: Served, *, key: str = "") -> AsyncGenerator[tuple[str, Any], None]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with served.http.stream("GET", "/v1/overview/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def next_event(served: Served) -> tuple[str, Any]:
    async with aclosing(events(served)) as found:
        return await anext(found)


async def test_it_has_pools_waits_percentiles_costs_and_jobs_to_ask_about(
    served: Served, worker: ScriptedWorker
) -> None:
    first = (await served.http.post("/v1/jobs", json=CHAT | {"class": "P1"})).json()["id"]
    lease = await worker.claim()
    await worker.finish(lease, b'{"choices":[]}')
    waiting = (await served.http.post("/v1/jobs", json=CHAT | {"class": "P0"})).json()["id"]
    failed = Notable(first, "P1", "w1", "failed", 0.5, 1.0, 2.0, 1_700_000_000.0)
    await notable.note_failed(served.pipe, [failed], queue="small")
    await served.fresh()
    name, found = await next_event(served)
    assert name == "overview"
    small = next(pool for pool in found["pools"] if pool["pool"] == "small")
    assert small["waiting"] == {"P0": 1, "P1": 0, "P2": 0, "P3": 0}
    assert small["waiting_s"]["P0"] > 0
    assert small["oldest_s"]["P0"] >= 0
    assert small["oldest_s"]["P1"] is None
    assert set(small["hour"]) == {"P1"}
    assert small["hour"]["P1"]["wait_s"].keys() == {"p50", "p95", "p99"}
    assert [each["id"] for each in small["workers"]] == ["scripted-small"]
    assert found["cost"]["actual"]["gpu_seconds"] == 0.5
    assert [job["job_id"] for job in found["recent"]["failed"]] == [first]
    assert found["recent"]["slow"] == []
    assert (await served.http.get("/v1/overview")).json()["pools"][0]["pool"] == "small"
    await served.http.delete(f"/v1/jobs/{waiting}")


async def test_all_viewers_of_a_process_share_one_look_a_second(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    real = costs

    async def counted(services: Any) -> Any:
        nonlocal looks
        looks += 1
        return await real(services)

    monkeypatch.setattr("api.overview.costs", counted)
    found = await asyncio.gather(*(next_event(served) for _ in range(20)))
    assert looks == 1
    assert {document["at"] for _, document in found} == {found[0][1]["at"]}


async def test_a_viewer_does_not_hold_up_the_end_of_the_process(settings: Settings) -> None:
    async with serve(settings) as served, aclosing(events(served)) as found:
        await anext(found)
        await served.stop()
        rest = [name async for name, _ in found]
    assert "error" not in rest


async def test_not_even_one_whose_look_hangs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_: Overviews) -> bytes:
        looking.set()
        return await asyncio.Future()

    looking = asyncio.Event()
    monkeypatch.setattr(Overviews, "latest", hang)
    async with serve(settings) as served:
        reading = asyncio.create_task(served.http.get("/v1/overview/events"))
        await looking.wait()
        await served.stop()
        assert (await reading).text == ""


async def test_it_is_for_operators(redis_url: str) -> None:
    settings = Settings(redis_url=redis_url, api_keys=("secret-1",))
    async with serve(settings) as served:
        for path in ("/v1/overview", "/v1/overview/events"):
            assert (await served.http.get(path)).status_code == 401
        made = await served.http.get("/v1/overview", headers={"Authorization": "Bearer secret-1"})
        assert made.status_code == 200
