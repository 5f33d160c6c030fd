"""What must hold of every answer, whatever was asked. Of tests/api/test_fuzz.py and benchmarks/fuzz.py; strategies are in `fuzzed.py`."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from api.cli.batch_input import Wishes, convert
from tests.conditions import wait_until
from tests.fuzzed import lines_of
from tests.workers.batch.rig import ENDPOINT

ENDED = ("completed", "failed", "expired", "cancelled")
STREAM_ENDS_S = 10.0
PATHS: tuple[tuple[str, str], ...] = tuple(
    (method, path)
    for path, methods in {
        "/v1/jobs/{}": ("GET", "DELETE"),
        "/v1/jobs/{}/events": ("GET",),
        "/v1/jobs/{}/redrive": ("POST",),
        "/v1/files/{}": ("GET", "DELETE"),
        "/v1/files/{}/content": ("GET",),
        "/v1/batches/{}": ("GET",),
        "/v1/batches/{}/cancel": ("POST",),
        "/v1/models/{}": ("GET",),
        "/v1/fleet/{}/pause": ("POST",),
        "/v1/fleet/small/workers/{}/pause": ("POST",),
    }.items()
    for method in methods
)


async def batch_complaints(
    http: httpx.AsyncClient, content: bytes, *, started: Callable[[str], Awaitable[None]] | None = None
) -> list[str]:
    """What is wrong with how a batch of this file ended. `started`: passes the batch on where no Celery does."""
    uploaded = await http.post(
        "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}, timeout=60
    )
    if uploaded.status_code != 200:
        return [f"upload: {uploaded.status_code} {uploaded.text}"]
    asked = {"input_file_id": uploaded.json()["id"], "endpoint": ENDPOINT, "completion_window": "1h"}
    created = await http.post("/v1/batches", json=asked)
    if created.status_code != 200:
        return [f"create: {created.status_code} {created.text}"]
    batch_id = created.json()["id"]
    if started:
        await started(batch_id)

    async def ended() -> dict[str, Any] | None:
        document: dict[str, Any] = (await http.get(f"/v1/batches/{batch_id}")).json()
        return document if document["status"] in ENDED else None

    try:
        batch = await wait_until(ended, timeout_s=60.0)
    except AssertionError:
        return [f"{batch_id} does not end"]
    output = await _lines(http, batch["output_file_id"])
    return judge(content, batch, output=output, errors=await _lines(http, batch["error_file_id"]))


async def _lines(http: httpx.AsyncClient, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = (await http.get(f"/v1/files/{file_id}/content")).content
    return [orjson.loads(line) for line in content.splitlines()]


def judge(
    content: bytes, batch: Mapping[str, Any], *, output: list[dict[str, Any]], errors: list[dict[str, Any]]
) -> list[str]:
    """Every line has one answer or one error that says what is wrong; a file without lines fails with its reason."""
    total, status = lines_of(content), batch["status"]
    if not total:
        said = status == "failed" and all(each["message"] for each in batch["errors"]["data"])
        return [] if said else [f"a file without lines ended as {status}: {batch['errors']}"]
    wanted = {"total": total, "completed": len(output), "failed": len(errors)}
    wrong = [] if status == "completed" else [f"ended as {status}: {batch['errors']}"]
    if batch["request_counts"] != wanted or len(output) + len(errors) != total:
        wrong.append(
            f"{total} lines, counted {batch['request_counts']}, {len(output)} + {len(errors)} written"
        )
    wrong += [f"no answer: {each}" for each in output if each["response"]["status_code"] != 200]
    return wrong + [f"an error without words: {each}" for each in errors if not _words(each)]


def _words(line: Mapping[str, Any]) -> bool:
    """Whether an error file's line says what was wrong: by Headway before it was asked, or by the engine."""
    said = line["error"] or line["response"]["body"]["error"]
    return bool(said["message"] and said["code"])


def reader_complaints(content: bytes) -> list[str]:
    """Of the command's own reader: it loses no line, and leaves what it does not understand to the server."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        source.write_bytes(content)
        with source.open("rb") as lines, target.open("wb") as out:
            converted = convert(lines, out, wishes=Wishes(lambda: "small"))
        written = target.read_bytes()
    there, kept = lines_of(content), lines_of(written)
    wrong = (
        []
        if there == kept == converted.lines
        else [f"{there} lines became {kept}, {converted.lines} counted"]
    )
    if content.count(b"\n") > written.count(b"\n"):
        wrong.append("line numbers have moved")
    return wrong


async def id_complaints(http: httpx.AsyncClient, thing: str) -> list[str]:
    """Of every path that holds an id: anything is refused in words, and nothing but 400 and 404 (405: it is a path itself)."""
    answers = await asyncio.gather(
        *(http.request(method, path.format(quote(thing, safe=""))) for method, path in PATHS)
    )
    return [
        f"{method} {path} of {thing[:80]!r}: {answer.status_code} {answer.text[:200]}"
        for (method, path), answer in zip(PATHS, answers, strict=True)
        if not _refused(answer, 400, 404, 405)
    ]


def _refused(answer: httpx.Response, *statuses: int) -> bool:
    return answer.status_code in statuses and bool(answer.json()["error"]["message"])


async def event_complaints(http: httpx.AsyncClient, job_id: str, *, last_id: str, after: str) -> list[str]:
    """Of a job that has ended: the events end with `done`, or the id is refused and named."""
    sent = last_id.encode("latin-1", "ignore").strip()
    headers = {b"Last-Event-ID": sent} if sent else {}
    try:
        async with asyncio.timeout(STREAM_ENDS_S):
            answer = await http.get(f"/v1/jobs/{job_id}/events", headers=headers, params={"after": after})
    except TimeoutError:
        return [f"events after {last_id!r}, {after!r} do not end"]
    if answer.status_code == 200 and "event: done\n" in answer.text:
        return []
    error = answer.json()["error"] if answer.status_code == 400 else {"param": None, "code": None}
    named = error["param"] in ("Last-Event-ID", "after") or error["code"] == "invalid_http"
    return [] if named else [f"events after {last_id!r}, {after!r}: {answer.status_code} {answer.text[:200]}"]


async def key_complaints(http: httpx.AsyncClient, key: str) -> list[str]:
    """An Idempotency-Key makes one job of two requests, or is refused and named."""
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    asked = {"model": "small", "prompt": "hi", "class": "P1"}
    answers = [await http.post("/v1/jobs", json=asked, headers=headers) for _ in range(2)]
    for answer in answers:
        if answer.status_code == 400 and answer.json()["error"]["param"] == "Idempotency-Key":
            return []
    if {answer.status_code for answer in answers} == {202} and (
        not key or len({a.json()["id"] for a in answers}) == 1
    ):
        return []
    return [f"Idempotency-Key {key!r}: {[(a.status_code, a.text[:200]) for a in answers]}"]
