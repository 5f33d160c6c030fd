"""Chat, completions and embeddings through the whole API, the queue and a scripted worker."""

import asyncio
from functools import partial
from typing import Any

import httpx
import openai
import orjson
import pytest

from broker import reaper
from broker.settings import Settings
from tests.api.harness import CONFIG, ScriptedWorker, Served, chat, chunk_payload, serve, whole_answer
from tests.conditions import wait_until

CHAT = "/v1/chat/completions"


async def answered(served: Served, worker: ScriptedWorker, **fields: Any) -> tuple[httpx.Response, bytes]:
    """A chat request with these fields, its answer, and the body that the worker was given."""
    asking = asyncio.create_task(served.http.post(CHAT, json=chat(**fields)))
    lease = await worker.claim()
    await worker.finish(lease, whole_answer("hello"))
    return await asking, lease.body


async def test_a_whole_answer_is_the_engines_bytes_with_the_jobs_headers(
    served: Served, worker: ScriptedWorker
) -> None:
    response, _ = await answered(served, worker)
    assert response.status_code == 200
    assert response.content == whole_answer("hello")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-headway-job"] == worker.leases[0].job_id
    assert response.headers["x-headway-pool"] == "small"
    assert response.headers["x-headway-class"] == "P0"
    assert int(response.headers["x-headway-queue-ms"]) >= 0
    assert int(response.headers["x-headway-predicted-ms"]) > 0


async def test_the_body_reaches_the_worker_byte_for_byte_unknown_fields_included(
    served: Served, worker: ScriptedWorker
) -> None:
    raw = b'{ "model":"gpt-small", "top_k": 7,\n "messages":[{"role":"user","content":"\xc3\xa9"}], "x":{"y":1.0e3} }'
    asking = asyncio.create_task(served.http.post(CHAT, content=raw))
    lease = await worker.claim()
    await worker.finish(lease, whole_answer("ok"))
    assert (await asking).status_code == 200
    assert lease.body == raw


async def test_headways_own_fields_do_not_reach_the_engine(served: Served, worker: ScriptedWorker) -> None:
    response, body = await answered(served, worker, priority=-3, service_tier="flex", top_k=7)
    assert orjson.loads(body) == chat(top_k=7)
    assert response.headers["x-headway-class"] == "P2"


@pytest.mark.parametrize(
    ("header", "tier", "expected"),
    [
        (None, None, "P0"),
        ("P1", None, "P1"),
        ("p3", "priority", "P3"),
        (None, "auto", "P0"),
        (None, "flex", "P2"),
    ],
)
async def test_the_class_comes_from_the_header_then_the_tier_then_is_interactive(
    served: Served, worker: ScriptedWorker, *, header: str | None, tier: str | None, expected: str
) -> None:
    headers = {"X-Headway-Class": header} if header else {}
    fields = {"service_tier": tier} if tier else {}
    asking = asyncio.create_task(served.http.post(CHAT, json=chat(**fields), headers=headers))
    lease = await worker.claim()
    await worker.finish(lease, whole_answer("ok"))
    assert (await asking).headers["x-headway-class"] == lease.service_class.name == expected


async def test_lower_priority_numbers_are_claimed_first(served: Served, worker: ScriptedWorker) -> None:
    async with asyncio.TaskGroup() as group:
        for number, priority in enumerate((1, -1, 0), 1):
            group.create_task(served.http.post(CHAT, json=chat(priority=priority, mark=priority)))
            await wait_until(partial(queued, served, number), what="the job to be queued")
        leases = [await worker.claim() for _ in range(3)]
        for lease in leases:
            await worker.finish(lease, whole_answer("ok"))
    assert [orjson.loads(lease.body)["mark"] for lease in leases] == [-1, 0, 1]


async def queued(served: Served, number: int) -> bool:
    return bool(await served.pipe.command("ZCARD", "hw:{small}:ready:0") == number)


async def test_a_stream_is_one_event_per_payload_and_ends_with_done(
    served: Served, worker: ScriptedWorker
) -> None:
    payloads = [chunk_payload(text) for text in ("a", "b", "c")]

    async def work() -> None:
        lease = await worker.claim()
        await worker.append(lease, payloads[0], seq=1)
        await worker.append(lease, *payloads[1:], seq=3)
        await worker.finish(lease)

    working = asyncio.create_task(work())
    response = await served.http.post(CHAT, json=chat(stream=True))
    await working
    events = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert events == [*(f"data: {payload.decode()}" for payload in payloads), "data: [DONE]"]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-headway-job"] == worker.leases[0].job_id


async def test_a_slow_reader_gets_every_payload_once_and_in_order(
    served: Served, worker: ScriptedWorker
) -> None:
    """8 MB, eight times a mailbox, while nothing is read: what did not fit is replayed."""
    texts = [f"{number} " + "x" * 200_000 for number in range(40)]
    async with served.http.stream("POST", CHAT, json=chat(stream=True)) as response:
        await worker.stream(await worker.claim(), *texts)
        events = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    told = [
        orjson.loads(event.removeprefix("data: "))["choices"][0]["delta"]["content"] for event in events[:-1]
    ]
    assert told == texts


async def test_the_openai_sdk_chats_with_and_without_streaming(
    served: Served, worker: ScriptedWorker
) -> None:
    async with served.openai() as client:
        working = asyncio.create_task(worker.stream_next("Hel", "lo"))
        stream = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        await working
        asking = asyncio.create_task(
            client.chat.completions.create(model="gpt-small", messages=[{"role": "user", "content": "hi"}])
        )
        await worker.finish(await worker.claim(), whole_answer("hello"))
        assert text == "Hello"
        assert (await asking).choices[0].message.content == "hello"


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/completions", {"prompt": "once"}), ("/v1/embeddings", {"input": ["once", "twice"]})],
)
async def test_completions_and_embeddings_go_the_same_way(
    served: Served, worker: ScriptedWorker, *, path: str, fields: dict[str, object]
) -> None:
    asking = asyncio.create_task(served.http.post(path, json={"model": "small", **fields}))
    lease = await worker.claim()
    await worker.finish(lease, b'{"data":[]}')
    assert (await asking).json() == {"data": []}
    assert lease.endpoint == path


async def test_a_silent_stream_begins_with_pings(served: Served, worker: ScriptedWorker) -> None:
    async with served.http.stream("POST", CHAT, json=chat(stream=True)) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert [await anext(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
        await worker.stream(await worker.claim(), "late")
        assert [line async for line in lines if line.startswith("data: ")][-1] == "data: [DONE]"


@pytest.mark.parametrize(
    ("engine_status", "expected"), [(400, 400), (422, 422), (501, 501), (401, 502), (429, 502), (None, 502)]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_error_before_the_first_byte_is_an_http_status(
    redis_url: str, worker: ScriptedWorker, *, engine_status: int | None, expected: int, stream: bool
) -> None:
    said = {"message": "no such tool", "type": "bad_tool", "code": "tool", "param": "tools"}
    document = said if engine_status is None else said | {"status": engine_status}
    async with serve(Settings(redis_url=redis_url)) as served:
        asking = asyncio.create_task(served.http.post(CHAT, json=chat(stream=stream)))
        lease = await worker.claim()
        await worker.finish(lease, orjson.dumps(document), succeeded=False)
        response = await asking
    assert response.status_code == expected
    error = response.json()["error"]
    assert (error["message"], error["code"], error["param"]) == ("no such tool", "tool", "tools")
    assert error["type"] == ("bad_tool" if expected != 502 else "server_error")
    assert response.headers["x-headway-job"] == lease.job_id


async def test_an_error_after_the_first_byte_is_an_event_that_the_sdk_raises(
    served: Served, worker: ScriptedWorker
) -> None:
    async def work() -> None:
        lease = await worker.claim()
        await worker.append(lease, chunk_payload("Hel"), seq=1)
        await worker.finish(lease, b'{"message":"engine fell over","code":"engine_broken"}', succeeded=False)

    async with served.openai() as client:
        working = asyncio.create_task(work())
        stream = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = aiter(stream)
        first = await anext(chunks)
        with pytest.raises(openai.APIError, match="engine fell over"):
            await anext(chunks)
        await working
    assert first.choices[0].delta.content == "Hel"


async def test_a_job_cancelled_by_somebody_else_is_gone_and_not_retried_by_clients(
    served: Served, worker: ScriptedWorker
) -> None:
    asking = asyncio.create_task(served.http.post(CHAT, json=chat()))
    lease = await worker.claim()
    assert (await served.http.delete(f"/v1/jobs/{lease.job_id}")).json()["status"] == "cancelled"
    response = await asking
    assert response.status_code == 410
    assert response.json()["error"]["code"] == "job_cancelled"


@pytest.fixture
def nobody_reaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "EVERY_S", 3600.0)


async def test_a_deadline_that_passes_is_504_and_the_job_ends_without_waiting_for_the_reaper(
    nobody_reaps: None, served: Served, worker: ScriptedWorker
) -> None:
    response = await served.http.post(CHAT, json=chat(), headers={"X-Headway-Deadline": "0.05"})
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert await served.status(response.headers["x-headway-job"]) == "expired"


async def test_without_a_live_worker_a_waiting_request_is_refused_naming_the_pool(served: Served) -> None:
    response = await served.http.post(CHAT, json=chat())
    assert response.status_code == 503
    assert "small" in response.json()["error"]["message"]
    assert int(response.headers["retry-after"]) >= 1


async def test_a_worker_that_has_just_come_is_seen_at_once(served: Served, redis_url: str) -> None:
    assert (await served.http.post(CHAT, json=chat(model="large"))).status_code == 503
    newcomer = await ScriptedWorker.join(redis_url, "large", state="starting")
    asking = asyncio.create_task(served.http.post(CHAT, json=chat(model="large")))
    await newcomer.finish(await newcomer.claim(), whole_answer("ok"))
    assert (await asking).status_code == 200
    await newcomer.close()


async def test_a_pool_that_only_a_worker_announced_is_a_model(served: Served, redis_url: str) -> None:
    newcomer = await ScriptedWorker.join(redis_url, "extra")
    asking = asyncio.create_task(served.http.post(CHAT, json=chat(model="extra")))
    await newcomer.finish(await newcomer.claim(), whole_answer("ok"))
    assert (await asking).headers["x-headway-pool"] == "extra"
    await newcomer.close()


async def test_an_unknown_model_is_404_naming_the_models(served: Served) -> None:
    response = await served.http.post(CHAT, json=chat(model="gpt-9"))
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert all(name in error["message"] for name in ("gpt-9", "gpt-small", "large", "small"))


async def test_a_full_queue_refuses_with_429_and_takes_again_when_there_is_room(
    redis_url: str, worker: ScriptedWorker
) -> None:
    async with serve(Settings(redis_url=redis_url, max_queued=2), config=CONFIG) as served:
        jobs = [await served.http.post("/v1/jobs", json=chat(**{"class": "P1"})) for _ in range(2)]
        refused = await served.http.post(CHAT, json=chat())
        assert [job.status_code for job in jobs] == [202, 202]
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        for _ in jobs:
            await worker.finish(await worker.claim(), whole_answer("ok"))
        assert (await served.http.post("/v1/jobs", json=chat())).status_code == 202
        for job in (await served.http.get("/v1/jobs?status=queued")).json()["data"]:
            await served.http.delete(f"/v1/jobs/{job['id']}")
