"""`/v1/files`: what is sent comes back, in whatever pieces, or is refused and leaves nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from broker.settings import Settings
from tests.api.harness import Served
from tests.conditions import wait_until


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(redis_url=redis_url, home=tmp_path, max_file_bytes=4 << 20, max_body_bytes=64 << 10)


async def upload(
    served: Served, content: bytes, *, purpose: str = "batch", name: str = "in.jsonl"
) -> httpx.Response:
    return await served.http.post("/v1/files", files={"file": (name, content)}, data={"purpose": purpose})


def stored(settings: Settings) -> list[Path]:
    return [path for path in (settings.home / "files").rglob("*") if path.is_file()]


async def test_openai_client_uploads_reads_lists_and_deletes(served: Served) -> None:
    content = bytes(range(256)) * 4096 + b"\r\n--not a boundary\r\n"
    async with served.openai() as client:
        made = await client.files.create(file=("ünï.jsonl", content), purpose="batch")
        assert (made.object, made.bytes, made.purpose, made.status) == (
            "file",
            len(content),
            "batch",
            "processed",
        )
        assert made.filename == "ünï.jsonl"
        assert (await client.files.retrieve(made.id)).id == made.id
        assert (await client.files.content(made.id)).content == content
        other = await client.files.create(file=("b", b"x"), purpose="user_data")
        assert [file.id async for file in client.files.list()] == [other.id, made.id]
        assert [file.id async for file in client.files.list(limit=1, order="asc")] == [made.id, other.id]
        assert [file.id async for file in client.files.list(purpose="batch")] == [made.id]
        assert (await client.files.delete(made.id)).deleted
    assert (await served.http.get(f"/v1/files/{made.id}")).status_code == 404
    assert (await served.http.get(f"/v1/files/{made.id}/content")).json()["error"]["code"] == "file_not_found"


async def test_a_file_larger_than_a_request_may_be_is_taken(served: Served, settings: Settings) -> None:
    content = b"x" * (settings.max_body_bytes * 4)
    made = (await upload(served, content)).json()
    answer = await served.http.get(f"/v1/files/{made['id']}/content")
    assert answer.content == content
    assert answer.headers["content-length"] == str(len(content))


async def test_an_empty_file_is_a_file(served: Served) -> None:
    made = (await upload(served, b"")).json()
    assert made["bytes"] == 0
    assert (await served.http.get(f"/v1/files/{made['id']}/content")).content == b""


async def test_purpose_may_follow_the_file(served: Served) -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\none\r\n'
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
    )
    headers = {"content-type": "multipart/form-data; boundary=b"}
    pieces = [form[n : n + 1] for n in range(len(form))]

    async def slowly() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    made = (await served.http.post("/v1/files", content=slowly(), headers=headers)).json()
    assert (made["purpose"], made["bytes"], made["filename"]) == ("batch", 3, "a")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_file_above_the_limit_is_refused_and_leaves_nothing(
    served: Served, settings: Settings, declared: bool
) -> None:
    form = httpx.Request(
        "POST",
        "http://x",
        files={"file": ("a", b"x" * (settings.max_file_bytes + 100_000))},
        data={"purpose": "batch"},
    )

    async def chunked() -> AsyncIterator[bytes]:
        for chunk in form.stream:  # type: ignore[union-attr]
            yield chunk

    headers = {"content-type": form.headers["content-type"]}
    content = form.read() if declared else chunked()
    answer = await served.http.post("/v1/files", content=content, headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    await wait_until(lambda: stored(settings) == [])


@pytest.mark.parametrize(
    ("kind", "content", "code"),
    [
        ("application/json", b"{}", "invalid_form"),
        ("multipart/form-data", b"", "invalid_form"),
        ("multipart/form-data; boundary=b", b"nonsense", "invalid_form"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\none',
            "invalid_form",
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n',
            "missing_required_parameter",
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\none\r\n--b--\r\n',
            "missing_required_parameter",
        ),
    ],
)
async def test_a_bad_form_is_refused_and_leaves_nothing(
    served: Served, settings: Settings, kind: str, content: bytes, code: str
) -> None:
    answer = await served.http.post("/v1/files", content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert stored(settings) == []
    assert (await served.http.get("/v1/files")).json()["data"] == []


async def test_an_upload_that_breaks_off_leaves_nothing(served: Served, settings: Settings) -> None:
    started = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * (1 << 20)
        started.set()
        await asyncio.Event().wait()

    headers = {"content-type": "multipart/form-data; boundary=b"}
    sending = asyncio.create_task(served.http.post("/v1/files", content=half(), headers=headers))
    await started.wait()
    await wait_until(lambda: stored(settings), what="bytes arrive")
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    await wait_until(lambda: stored(settings) == [], what="the bytes are gone")


@pytest.mark.parametrize(
    ("body", "boundary"),
    [
        (
            b"".join(
                b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n' % n for n in range(500)
            ),
            "b",
        ),
        (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n1\r\n' * 2 + b"--b--",
            "b",
        ),
        (b"", "b" * 5000),
    ],
    ids=["many fields", "two files", "endless boundary"],
)
async def test_an_odd_form_is_a_400(served: Served, settings: Settings, body: bytes, boundary: str) -> None:
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    refused = await served.http.post("/v1/files", content=body, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_form"
    assert stored(settings) == []
