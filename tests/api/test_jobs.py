"""`/v1/jobs`: what a poller may rely on."""

import asyncio
from typing import Any

import orjson
import pytest

from broker.job import Forecast
from predictor.learned import LearnedEstimator
from tests.api.harness import ScriptedWorker, Served, chat, whole_answer
from tests.conditions import wait_until


async def submitted(served: Served, **fields: Any) -> dict[str, Any]:
    response = await served.http.post("/v1/jobs", json=chat(**fields))
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    assert response.headers["x-headway-job"] == document["id"]
    return document


async def polled(served: Served, job_id: str, **query: Any) -> dict[str, Any]:
    response = await served.http.get(f"/v1/jobs/{job_id}", params=query)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_job_is_accepted_whether_or_not_a_worker_is_there(served: Served) -> None:
    job = await submitted(served, **{"class": "P1"}, max_tokens=7)
    assert (job["object"], job["status"], job["class"], job["pool"]) == ("job", "queued", "P1", "small")
    assert job["position"] == 0
    assert job["predicted"] == {"start_s": None, "run_s": job["predicted"]["run_s"], "output_tokens": 7}
    assert job["predicted"]["run_s"] > 0
    second = await submitted(served, **{"class": "P1"}, max_tokens=7)
    assert second["position"] == 1
    for each in (job, second):
        await served.http.delete(f"/v1/jobs/{each['id']}")


async def test_a_call_of_a_tool_is_foretold_when_it_is_queued_and_whenever_it_is_looked_at(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def likely(*_: object, **__: object) -> Forecast:
        return Forecast(5, 10, 0.1, tool_call=0.8349)

    monkeypatch.setattr(LearnedEstimator, "forecast", likely)
    job = await submitted(served, **{"class": "P1"})
    assert job["predicted"]["tool_call"] == 0.83
    assert (await polled(served, job["id"]))["predicted"]["tool_call"] == 0.83
    await served.http.delete(f"/v1/jobs/{job['id']}")


async def test_a_job_ends_with_its_result_its_usage_and_its_times(
    served: Served, worker: ScriptedWorker
) -> None:
    job = await submitted(served, **{"class": "P1"}, metadata={"case": "7"})
    lease = await worker.claim()
    assert lease.stream
    assert not lease.attached
    await worker.finish(lease, whole_answer("hello"))
    document = await polled(served, job["id"], wait=10)
    assert document["status"] == "succeeded"
    assert document["result"] == orjson.loads(whole_answer("hello"))
    assert document["error"] is None
    assert document["metadata"] == {"case": "7"}
    assert document["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0}
    assert document["attempts"]["count"] == 1
    times = document["timings"]
    assert times["created_at"] <= times["claimed_at"] <= times["finished_at"]
    assert times["total_s"] == pytest.approx(times["queued_s"] + times["run_s"], abs=0.002)


async def test_the_engine_gets_the_body_without_headways_fields(
    served: Served, worker: ScriptedWorker
) -> None:
    await submitted(
        served, **{"class": "p0"}, deadline_s=60, metadata={}, priority=1, service_tier="flex", top_k=3
    )
    lease = await worker.claim()
    await worker.finish(lease, whole_answer("ok"))
    assert orjson.loads(lease.body) == chat(top_k=3)


@pytest.mark.parametrize(
    ("subject", "endpoint"),
    [({"prompt": "once"}, "/v1/completions"), ({"input": "once"}, "/v1/embeddings")],
)
async def test_prompt_and_input_choose_the_endpoint(
    served: Served, worker: ScriptedWorker, *, subject: dict[str, str], endpoint: str
) -> None:
    response = await served.http.post("/v1/jobs", json={"model": "gpt-small", "class": "P1", **subject})
    lease = await worker.claim()
    await worker.finish(lease, b"{}")
    document = await polled(served, response.json()["id"], wait=10)
    assert lease.endpoint == document["endpoint"] == endpoint
    assert document["model"] == "gpt-small"
    assert document["pool"] == "small"


@pytest.mark.parametrize(
    ("fields", "header", "expected"),
    [
        ({}, None, "P2"),
        ({"service_tier": "priority"}, None, "P0"),
        ({}, "P3", "P3"),
        ({"class": "P1"}, "P3", "P1"),
    ],
)
async def test_the_class_is_the_bodys_then_the_headers_then_the_tiers_then_batch(
    served: Served, *, fields: dict[str, str], header: str | None, expected: str
) -> None:
    headers = {"X-Headway-Class": header} if header else {}
    response = await served.http.post("/v1/jobs", json=chat(**fields), headers=headers)
    assert response.json()["class"] == expected
    await served.http.delete(f"/v1/jobs/{response.json()['id']}")


async def test_batch_work_is_held_and_a_celery_message_with_its_id_is_sent(served: Served) -> None:
    job = await submitted(served)

    async def message() -> Any:
        return await served.pipe.command("LINDEX", "headway.celery:batch", 0)

    envelope = orjson.loads(await wait_until(message, what="the message"))
    assert envelope["headers"]["task"] == "headway.feed"
    assert job["id"] in envelope["headers"]["argsrepr"]
    assert await served.pipe.command("ZSCORE", "hw:{small}:delayed", job["id"]) is not None
    assert await served.producer.feed(job["id"])
    await served.http.delete(f"/v1/jobs/{job['id']}")


async def test_a_waiting_poll_returns_as_soon_as_the_job_ends(served: Served, worker: ScriptedWorker) -> None:
    job = await submitted(served, **{"class": "P1"})
    poll = asyncio.create_task(polled(served, job["id"], wait=60))
    lease = await worker.claim()
    await worker.finish(lease, b'{"message":"no","code":"c"}', succeeded=False)
    document = await poll
    assert document["status"] == "failed"
    assert document["error"] == {"message": "no", "code": "c"}
    assert document["result"] is None


async def test_a_waiting_poll_returns_the_job_as_it_is_when_its_time_is_up(served: Served) -> None:
    job = await submitted(served, **{"class": "P1"})
    assert (await polled(served, job["id"], wait=0.01))["status"] == "queued"
    await served.http.delete(f"/v1/jobs/{job['id']}")


async def test_a_poller_that_leaves_stops_watching_and_does_not_cancel(served: Served) -> None:
    job = await submitted(served, **{"class": "P1"})

    async def watchers() -> bool:
        return bool(await served.pipe.command("PUBSUB", "CHANNELS", f"hw:*out:{job['id']}"))

    async def no_watchers() -> bool:
        return not await watchers()

    poll = asyncio.create_task(polled(served, job["id"], wait=60))
    await wait_until(watchers, what="the poller to watch")
    poll.cancel()
    await wait_until(no_watchers, what="the poller's subscription to go")
    assert await served.status(job["id"]) == "queued"
    await served.http.delete(f"/v1/jobs/{job['id']}")


async def test_cancelling_is_repeatable_and_leaves_an_ended_job_as_it_ended(
    served: Served, worker: ScriptedWorker
) -> None:
    job, other = await submitted(served, **{"class": "P1"}), await submitted(served, **{"class": "P1"})
    await worker.finish(await worker.claim(), whole_answer("ok"))
    for _ in range(2):
        assert (await served.http.delete(f"/v1/jobs/{other['id']}")).json()["status"] == "cancelled"
        assert (await served.http.delete(f"/v1/jobs/{job['id']}")).json()["status"] == "succeeded"


async def test_listing_goes_over_all_pools_newest_first_page_by_page(served: Served) -> None:
    sent = []
    for number in range(7):
        model, service_class = ("small", "large")[number % 2], ("P1", "P2")[number % 3 == 0]
        sent.append((await submitted(served, model=model, **{"class": service_class}))["id"])
    found: list[str] = []
    page: dict[str, Any] = {"has_more": True, "data": []}
    while page["has_more"]:
        after = {"after": found[-1]} if found else {}
        page = (await served.http.get("/v1/jobs", params={"limit": 3, **after})).json()
        found += [job["id"] for job in page["data"]]
    by_age = {job_id: (await polled(served, job_id))["created_at"] for job_id in sent}
    assert found == sorted(sent, key=lambda job_id: (by_age[job_id], job_id), reverse=True)
    batch = (await served.http.get("/v1/jobs?class=P2&status=queued,running")).json()
    assert {job["id"] for job in batch["data"]} == {sent[number] for number in (0, 3, 6)}
    for job_id in sent:
        await served.http.delete(f"/v1/jobs/{job_id}")
    assert (await served.http.get("/v1/jobs?status=queued")).json() == {
        "object": "list",
        "data": [],
        "has_more": False,
    }


async def test_a_job_that_ended_without_an_answer_says_why(served: Served) -> None:
    cancelled, late = [await submitted(served, **{"class": "P1"}, deadline_s=0.02 + 60 * n) for n in (1, 0)]
    await served.http.delete(f"/v1/jobs/{cancelled['id']}")
    found = [await polled(served, job["id"], wait=20) for job in (cancelled, late)]
    assert [job["status"] for job in found] == ["cancelled", "expired"]
    assert [job["error"] for job in found] == [
        {
            "message": f"{cancelled['id']} was cancelled",
            "type": "invalid_request_error",
            "code": "job_cancelled",
            "param": None,
        },
        {
            "message": "no answer within the deadline of 0.02 s",
            "type": "server_error",
            "code": "deadline_exceeded",
            "param": None,
        },
    ]


async def test_dead_letters_are_listed_by_status_class_and_page(
    served: Served, worker: ScriptedWorker
) -> None:
    ids = []
    for service_class in ("P0", "P1", "P1"):
        ids.append((await submitted(served, **{"class": service_class}))["id"])
        await worker.bury(await worker.claim(), b'{"message":"bad","code":"c"}')

    async def listed(**query: Any) -> list[str]:
        found = (await served.http.get("/v1/jobs", params={"dead": True, **query})).json()["data"]
        return [job["id"] for job in found]

    assert await listed() == ids[::-1]
    assert await listed(**{"class": "P1"}) == [ids[2], ids[1]]
    assert await listed(**{"class": "P1"}, status="failed", limit=1) == [ids[2]]
    assert await listed(**{"class": "P3"}) == await listed(status="succeeded") == []
    assert await listed(after=ids[2], limit=1) == [ids[1]]


async def test_a_dead_letter_is_listed_with_its_history_and_redriven_once(
    served: Served, worker: ScriptedWorker
) -> None:
    job = await submitted(served, **{"class": "P1"})
    await worker.bury(await worker.claim(), b'{"message":"bad","code":"engine_broken"}')
    letters = (await served.http.get("/v1/jobs?dead=true")).json()["data"]
    assert [letter["id"] for letter in letters] == [job["id"]]
    dead = await polled(served, job["id"])
    assert dead["status"] == "failed"
    [attempt] = dead["attempts"].pop("history")
    assert dead["attempts"] == {"count": 1, "errors": 1, "deaths": 0}
    assert (attempt["worker"], attempt["ended"]) == ("scripted-small", "engine_error")
    assert attempt["error"] == {"message": "bad", "code": "engine_broken"}
    again = await served.http.post(f"/v1/jobs/{job['id']}/redrive")
    assert again.status_code == 202
    await worker.finish(await worker.claim(), whole_answer("ok"))
    assert (await polled(served, again.json()["id"], wait=10))["status"] == "succeeded"
    assert (await polled(served, job["id"]))["redriven_as"] == again.json()["id"]
    assert (await served.http.post(f"/v1/jobs/{job['id']}/redrive")).status_code == 409
