"""`Idempotency-Key`: what is sent again under the same key is the same job, whenever and by whomever it was broken off."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from broker import idempotency
from broker.job import new_job_id
from tests.api.harness import ScriptedWorker, Served, chat, chunk_payload, whole_answer
from tests.conditions import wait_until

CHAT = "/v1/chat/completions"


async def post(served: Served, key: str, **fields: Any) -> httpx.Response:
    asked = chat(**({"class": "P1"} | fields))
    return await served.http.post("/v1/jobs", json=asked, headers={"Idempotency-Key": key})


async def jobs_there(served: Served) -> int:
    return len(await served.pipe.command("KEYS", "hw:*:job:*"))


async def test_a_repeat_is_the_same_job_while_it_waits_runs_and_after_it_ended(
    served: Served, worker: ScriptedWorker
) -> None:
    first = (await post(served, "k")).json()
    found = []
    for step in ("queued", "running", "succeeded"):
        if step == "running":
            await worker.claim()
        elif step == "succeeded":
            await worker.finish(worker.leases[0], whole_answer("ok"))
        again = await post(served, "k")
        assert (again.status_code, again.json()["id"]) == (202, first["id"])
        assert again.headers["x-headway-job"] == first["id"]
        found.append(again.json())
    assert [job["status"] for job in found] == ["queued", "running", "succeeded"]
    assert found[-1]["result"] == orjson.loads(whole_answer("ok"))
    assert await jobs_there(served) == 1


async def test_two_at_once_are_one_job(served: Served) -> None:
    answers = await asyncio.gather(*(post(served, "k") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert {answer.json()["status"] for answer in answers} == {"queued"}
    await served.http.delete(f"/v1/jobs/{answers[0].json()['id']}")


async def test_the_order_of_the_fields_does_not_matter(served: Served) -> None:
    body = chat(temperature=0.5, **{"class": "P1"})
    ids = set()
    for fields in (body, dict(reversed(body.items()))):
        answer = await served.http.post("/v1/jobs", json=fields, headers={"Idempotency-Key": "k"})
        ids.add(answer.json()["id"])
    assert len(ids) == 1
    await served.http.delete(f"/v1/jobs/{ids.pop()}")


@pytest.mark.parametrize(
    "changed", [{"max_tokens": 7}, {"class": "P0"}, {"metadata": {"a": "b"}}, {"deadline_s": 9}]
)
async def test_the_same_key_for_another_request_is_409(served: Served, *, changed: dict[str, Any]) -> None:
    first = (await post(served, "k")).json()
    answer = await post(served, "k", **changed)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "idempotency_key_reused"
    assert await jobs_there(served) == 1
    await served.http.delete(f"/v1/jobs/{first['id']}")


async def test_a_job_whose_submitter_died_before_it_was_queued_is_queued_under_its_id(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[bytes] = []
    bind = idempotency.bind

    async def dies(*args: Any, **options: Any) -> bytes:
        bound.append(await bind(*args, **options))
        raise asyncio.CancelledError

    monkeypatch.setattr(idempotency, "bind", dies)
    with pytest.raises(httpx.HTTPError):
        (await post(served, "k")).raise_for_status()
    monkeypatch.undo()
    assert await jobs_there(served) == 0
    answer = await post(served, "k")
    assert answer.status_code == 202
    assert bound[0].startswith(answer.json()["id"].encode())
    assert await served.status(answer.json()["id"]) == "queued"
    await served.http.delete(f"/v1/jobs/{answer.json()['id']}")


async def test_a_key_is_kept_for_the_deadline_and_the_retention(served: Served) -> None:
    job = (await post(served, "k", deadline_s=1000)).json()
    (name,) = await served.pipe.command("KEYS", "hw:idem:*")
    assert 1000 + 86_400 - 60 < await served.pipe.command("TTL", name) <= 1000 + 86_400
    await served.http.delete(f"/v1/jobs/{job['id']}")


async def test_keys_of_tenants_are_apart(served: Served) -> None:
    mine, yours = new_job_id("small").encode(), new_job_id("small").encode()
    assert await idempotency.bind(served.pipe, "a", key="k", value=mine, ttl_s=60) == mine
    assert await idempotency.bind(served.pipe, "b", key="k", value=yours, ttl_s=60) == yours
    assert await idempotency.bind(served.pipe, "a", key="k", value=yours, ttl_s=60) == mine


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches"])
@pytest.mark.parametrize("bad", [b"", b"x" * 256, b"\xe9", b"a\tb"])
async def test_a_bad_key_is_400(served: Served, *, bad: bytes, path: str) -> None:
    answer = await served.http.post(path, json=chat(), headers={b"Idempotency-Key": bad})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"


async def test_a_key_of_255_characters_is_taken(served: Served) -> None:
    answer = await post(served, "~" * 255)
    assert answer.status_code == 202
    await served.http.delete(f"/v1/jobs/{answer.json()['id']}")


async def ask(served: Served, **fields: Any) -> httpx.Response:
    return await served.http.post(CHAT, json=chat(**fields), headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("stream", [False, True])
async def test_connections_with_one_key_get_the_answer_of_one_job_during_and_after_it(
    served: Served, worker: ScriptedWorker, *, stream: bool
) -> None:
    first = asyncio.create_task(ask(served, stream=stream))
    lease = await worker.claim()
    if stream:
        await worker.append(lease, chunk_payload("a"), seq=1)
    second = asyncio.create_task(ask(served, stream=stream))
    if stream:
        await worker.append(lease, chunk_payload("b"), seq=2)
    await worker.finish(lease, b"" if stream else whole_answer("ab"))
    answers = [await first, await second, await ask(served, stream=stream)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-headway-job"] for answer in answers} == {lease.job_id}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].text.count("chat.completion") == (2 if stream else 1)
    assert await jobs_there(served) == 1


async def test_a_connection_with_a_key_that_breaks_off_leaves_its_job_alone(
    served: Served, worker: ScriptedWorker
) -> None:
    first = asyncio.create_task(ask(served))
    lease = await worker.claim()
    output = f"hw:{{small}}:out:{lease.job_id}"

    async def nobody_watches() -> bool:
        return not await served.pipe.command("PUBSUB", "CHANNELS", output)

    first.cancel()
    await wait_until(nobody_watches, what="the API sees that the client has gone")
    assert await served.status(lease.job_id) == "running"
    again = asyncio.create_task(ask(served))
    await worker.finish(lease, whole_answer("late"))
    assert (await again).json() == orjson.loads(whole_answer("late"))


async def test_a_key_of_a_chat_is_none_of_a_job_or_of_another_chat(
    served: Served, worker: ScriptedWorker
) -> None:
    first = asyncio.create_task(ask(served))
    await worker.finish(await worker.claim(), whole_answer("ok"))
    assert (await first).status_code == 200
    for answer in (
        await ask(served, max_tokens=7),
        await post(served, "k", **{"class": "P0"}, deadline_s=600),
    ):
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "idempotency_key_reused"


async def test_a_request_that_was_refused_for_want_of_a_worker_may_come_again(
    served: Served, redis_url: str
) -> None:
    assert (await ask(served)).status_code == 503
    worker = await ScriptedWorker.join(redis_url, "small")
    again = asyncio.create_task(ask(served))
    await worker.finish(await worker.claim(), whole_answer("ok"))
    assert (await again).status_code == 200
    await worker.close()
