"""`/v1/jobs/{id}/events`: every payload once, in order, from any position; resets and gaps are said."""

import asyncio
from typing import Any

import orjson
import pytest

from broker import scripts
from tests.api.harness import ScriptedWorker, Served, chat, chunk_payload, whole_answer
from tests.conditions import wait_until

Event = tuple[str, str | None, Any]


def events_of(text: str) -> list[Event]:
    """(name, id, data) of each event."""
    found: list[Event] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id"), orjson.loads(fields["data"])))
    return found


async def submitted(served: Served, **fields: Any) -> str:
    response = await served.http.post("/v1/jobs", json=chat(**({"class": "P1"} | fields)))
    return str(response.json()["id"])


async def watched(served: Served, job_id: str, *, after: str | None = None) -> list[Event]:
    headers = {} if after is None else {"Last-Event-ID": after}
    response = await served.http.get(f"/v1/jobs/{job_id}/events", headers=headers)
    assert response.status_code == 200
    return events_of(response.text)


def texts(events: list[Event]) -> list[tuple[str | None, str]]:
    """Chunks as (id, text)."""
    chunks = [(event_id, data) for name, event_id, data in events if name == "chunk"]
    return [(event_id, data["choices"][0]["delta"]["content"]) for event_id, data in chunks]


async def test_a_watcher_sees_status_chunks_and_the_whole_job(served: Served, worker: ScriptedWorker) -> None:
    job_id = await submitted(served)
    watching = asyncio.create_task(watched(served, job_id))

    async def is_watched() -> bool:
        return bool(await served.pipe.command("PUBSUB", "CHANNELS", f"hw:*out:{job_id}"))

    await wait_until(is_watched, what="the watcher")
    lease = await worker.claim()
    await worker.append(lease, chunk_payload("a"), seq=1)
    await worker.append(lease, chunk_payload("b"), chunk_payload("c"), seq=3)
    await worker.finish(lease, whole_answer("abc"))
    events = await watching
    assert [name for name, *_ in events] == ["status", "status", "chunk", "chunk", "chunk", "status", "done"]
    assert [data["status"] for name, _, data in events if name == "status"] == [
        "queued",
        "running",
        "succeeded",
    ]
    assert texts(events) == [(f"{lease.token}-{n}", text) for n, text in enumerate("abc", start=1)]
    document = events[-1][2]
    assert document["id"] == job_id
    assert document["result"] == orjson.loads(whole_answer("abc"))


@pytest.mark.parametrize("by", ["Last-Event-ID", "after"])
async def test_a_reader_resumes_exactly_after_every_position(
    served: Served, worker: ScriptedWorker, *, by: str
) -> None:
    """Chunks lie in entries of 1, 3, 2 and 1 payloads; positions inside an entry count as much as its ends."""
    job_id = await submitted(served)
    lease = await worker.claim()
    seq = 0
    for size in (1, 3, 2, 1):
        seq += size
        await worker.append(lease, *(chunk_payload(str(n)) for n in range(seq - size + 1, seq + 1)), seq=seq)
    await worker.finish(lease, whole_answer("all"))
    for position in range(8):
        after = f"{lease.token}-{position}"
        if by == "after":
            response = await served.http.get(f"/v1/jobs/{job_id}/events", params={"after": after})
            events = events_of(response.text)
        else:
            events = await watched(served, job_id, after=after)
        assert texts(events) == [(f"{lease.token}-{n}", str(n)) for n in range(position + 1, 8)]
        assert events[-1][0] == "done"


async def test_a_reader_that_comes_late_replays_and_then_goes_live(
    served: Served, worker: ScriptedWorker
) -> None:
    job_id = await submitted(served)
    lease = await worker.claim()
    await worker.append(lease, chunk_payload("a"), chunk_payload("b"), seq=2)
    seen = b""
    async with served.http.stream(
        "GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": f"{lease.token}-1"}
    ) as response:
        async for data in response.aiter_bytes():
            seen += data
            if b"-2\n" in seen and b"-3\n" not in seen:
                await worker.append(lease, chunk_payload("c"), seq=3)
            elif b"-3\n" in seen and b"event: done" not in seen:
                await worker.finish(lease, whole_answer("abc"))
    assert texts(events_of(seen.decode())) == [(f"{lease.token}-2", "b"), (f"{lease.token}-3", "c")]


async def test_a_second_attempt_resets_what_the_first_had_said(
    served: Served, worker: ScriptedWorker
) -> None:
    job_id = await submitted(served)
    first = await worker.claim()
    await worker.append(first, chunk_payload("half"), seq=1)
    await worker.consumer.release(first, scripts.Return("drain"))
    second = await worker.claim()
    await worker.append(second, chunk_payload("whole"), seq=1)
    await worker.finish(second, whole_answer("whole"))
    events = await watched(served, job_id)
    assert [(name, event_id) for name, event_id, _ in events if name in ("chunk", "reset")] == [
        ("chunk", f"{first.token}-1"),
        ("reset", f"{second.token}-0"),
        ("chunk", f"{second.token}-1"),
    ]
    resumed = await watched(served, job_id, after=f"{second.token}-0")
    assert [name for name, *_ in resumed if name == "reset"] == []
    assert texts(resumed) == [(f"{second.token}-1", "whole")]


async def test_chunks_that_are_no_longer_kept_are_a_gap(served: Served, worker: ScriptedWorker) -> None:
    job_id = await submitted(served)
    lease = await worker.claim()
    for seq in (1, 2, 4):
        await worker.append(lease, *([chunk_payload(str(seq))] * (2 if seq == 4 else 1)), seq=seq)
    await served.pipe.command("XDEL", f"hw:{{small}}:out:{job_id}", f"{lease.token}-2")
    await worker.finish(lease, whole_answer("all"))
    events = await watched(served, job_id, after=f"{lease.token}-1")
    gap = {"after": f"{lease.token}-1", "resumes_after": f"{lease.token}-2"}
    assert [data for name, _, data in events if name == "gap"] == [gap]
    assert [event_id for event_id, _ in texts(events)] == [f"{lease.token}-3", f"{lease.token}-4"]
    assert events[-1][0] == "done"


@pytest.mark.parametrize("service_class", ["P0", "P1", "P2", "P3"])
async def test_a_job_that_has_ended_is_told_in_the_order_in_which_it_happened(
    served: Served, worker: ScriptedWorker, *, service_class: str
) -> None:
    job_id = await submitted(served, **{"class": service_class})
    await served.producer.feed(job_id)
    lease = await worker.claim()
    assert lease.stream, "tokens of every class can be watched"
    await worker.append(lease, chunk_payload("a"), chunk_payload("b"), seq=2)
    await worker.finish(lease, whole_answer("ab"))
    told = [(name, data.get("status")) for name, _, data in await watched(served, job_id)]
    begun = [("status", "queued"), ("status", "running")]
    ended = [("status", "succeeded"), ("done", "succeeded")]
    assert told == [*begun, ("chunk", None), ("chunk", None), *ended]
    later = await watched(served, job_id, after=f"{lease.token}-1")
    resumed = [(name, data.get("status")) for name, _, data in later]
    assert resumed == [("status", "running"), ("chunk", None), *ended]


@pytest.mark.parametrize(("claimed", "begun"), [(True, ["queued", "running"]), (False, ["queued"])])
async def test_an_end_without_chunks_is_told_after_what_came_before_it(
    served: Served, worker: ScriptedWorker, *, claimed: bool, begun: list[str]
) -> None:
    job_id = await submitted(served, stream=False)
    if claimed:
        assert not (await worker.claim()).stream
    await served.http.delete(f"/v1/jobs/{job_id}")
    events = await watched(served, job_id)
    assert [data["status"] for name, _, data in events if name == "status"] == [*begun, "cancelled"]
    assert events[-1][2]["error"]["code"] == "job_cancelled"


async def test_a_cancelled_job_ends_the_stream(served: Served, worker: ScriptedWorker) -> None:
    job_id = await submitted(served)
    watching = asyncio.create_task(watched(served, job_id))
    await worker.claim()
    await served.http.delete(f"/v1/jobs/{job_id}")
    name, _, document = (await watching)[-1]
    assert (name, document["status"]) == ("done", "cancelled")


async def test_a_silent_job_is_pinged_and_a_leaving_watcher_does_not_cancel_it(
    served: Served, worker: ScriptedWorker
) -> None:
    job_id = await submitted(served)
    async with served.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        async for line in response.aiter_lines():
            if line == ": ping":
                break
    await worker.finish(await worker.claim(), whole_answer("ok"))
    assert await served.status(job_id) == "succeeded"


@pytest.mark.parametrize("bad", ["1", "x-1", "-", "1-2-3", "1-", "١-1", "9" * 50 + "-1"])
async def test_a_bad_position_is_400(served: Served, *, bad: str) -> None:
    job_id = await submitted(served)
    response = await served.http.get(f"/v1/jobs/{job_id}/events", params={"after": bad})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "after"
    await served.http.delete(f"/v1/jobs/{job_id}")
