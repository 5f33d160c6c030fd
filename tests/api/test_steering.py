"""Operators steer pools and workers over HTTP: a draining pool takes nothing new and serves what waits."""

import asyncio

import pytest

from tests.api.harness import ScriptedWorker, Served, chat, whole_answer


async def test_draining_pool_refuses_new_requests_and_serves_what_waits(
    served: Served, worker: ScriptedWorker
) -> None:
    waiting = (await served.http.post("/v1/jobs", json=chat())).json()["id"]
    drained = await served.http.post("/v1/fleet/small/drain")
    assert (drained.status_code, drained.json()["draining"]) == (200, True)
    for path in ("/v1/jobs", "/v1/chat/completions"):
        refused = await served.http.post(path, json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "pool_draining")
        assert int(refused.headers["retry-after"]) > 0
    await served.producer.feed(waiting)
    lease = await worker.claim()
    assert lease.job_id == waiting
    await worker.finish(lease, whole_answer("ok"))
    assert (await served.http.post("/v1/fleet/gpt-small/resume")).json()["draining"] is False
    accepted = await served.http.post("/v1/jobs", json=chat())
    assert accepted.status_code == 202
    await served.http.delete(f"/v1/jobs/{accepted.json()['id']}")


async def test_other_pools_go_on_while_one_drains(served: Served) -> None:
    await served.http.post("/v1/fleet/small/drain")
    accepted = await served.http.post("/v1/jobs", json=chat(model="large"))
    assert accepted.status_code == 202
    await served.http.delete(f"/v1/jobs/{accepted.json()['id']}")


@pytest.mark.parametrize("wish", ["pause", "resume", "drain"])
async def test_a_worker_is_told_what_is_wished_of_it(
    served: Served, worker: ScriptedWorker, *, wish: str
) -> None:
    key = "hw:{small}:worker:scripted-small"
    answer = await served.http.post(f"/v1/fleet/small/workers/scripted-small/{wish}")
    assert answer.status_code == 200
    assert [shown["id"] for shown in answer.json()["workers"]] == ["scripted-small"]
    noted = await served.pipe.command("HGET", key, "wish")
    assert noted == (None if wish == "resume" else wish.encode())


@pytest.mark.parametrize("wish", ["pause", "resume", "drain"])
async def test_a_worker_that_is_not_there_is_404(
    served: Served, worker: ScriptedWorker, *, wish: str
) -> None:
    for path in ("small/workers/nobody", "large/workers/scripted-small"):
        answer = await served.http.post(f"/v1/fleet/{path}/{wish}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "worker_not_found")
    assert (await served.http.post(f"/v1/fleet/nowhere/{wish}")).status_code == 404


async def test_requests_wait_for_a_worker_that_is_paused(served: Served, worker: ScriptedWorker) -> None:
    """It will be resumed; a pool whose workers drain has none."""
    await worker.announce("paused")
    await served.fresh()
    asking = asyncio.create_task(served.http.post("/v1/chat/completions", json=chat()))
    await worker.finish(await worker.claim(), whole_answer("ok"))
    assert (await asking).status_code == 200
    await worker.announce("draining")
    await served.fresh()
    assert (await served.http.post("/v1/chat/completions", json=chat())).json()["error"][
        "code"
    ] == "no_worker"
