"""Hostile requests: refused early and clearly, in JSON, and never mistaken for another one."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio
import redis

from api import middleware
from api.body import MAX_CONTAINERS, MAX_VALUES
from api.cli.redis_server import RedisServer
from api.connection import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer
from tests.api.wire import BODY, chunked, dial, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
JOBS = "/v1/jobs"
FORM = "content-type: multipart/form-data; boundary=b"
MAX_BODY = 400_000
HEALTH = "GET /healthz HTTP/1.1\r\nhost: x\r\n"
CHUNKED = "transfer-encoding: chunked"

MALFORMED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no such version": b"GET /healthz HTTP/9.9\r\nhost: x\r\n\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    "NUL in the path": b"GET /v1/jobs/\0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "path not ASCII": b"GET /v1/jobs/\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    "a folded header": HEALTH.encode() + b"x: a\r\n b\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nhost : x\r\n\r\n",
    "control character in a header": HEALTH.encode() + b"x: a\x01b\r\n\r\n",
    "two lengths": post(JOBS, "content-length: 3"),
    "length and chunks": post(JOBS, CHUNKED, body=b"0\r\n\r\n"),
    "negative length": post(JOBS, "content-length: -5", body=b"", length=False),
    "length beyond 64 bits": post(JOBS, f"content-length: {10**25}", body=b"", length=False),
    "unknown transfer encoding": post(JOBS, "transfer-encoding: identity", length=False),
    "chunk of no size": post(JOBS, CHUNKED, body=b"zz\r\nhello\r\n0\r\n\r\n", length=False),
    "chunk that lies": post(JOBS, CHUNKED, body=b"3\r\nhello\r\n0\r\n\r\n", length=False),
    "chunk beyond 64 bits": post(JOBS, CHUNKED, body=b"f" * 18 + b"\r\nhello\r\n0\r\n\r\n", length=False),
}

TOO_LARGE = {
    "one long header": f"{HEALTH}x: {'a' * 1_000_000}\r\n\r\n",
    "many headers": HEALTH + "x: a\r\n" * MAX_HEADERS + "\r\n",
    "a million headers": HEALTH + "x: a\r\n" * 1_000_000,
    "a long path": f"GET /{'a' * MAX_HEAD_BYTES} HTTP/1.1\r\nhost: x\r\n\r\n",
    "a head without end": f"{HEALTH}x: {'a' * MAX_HEAD_BYTES}",
    "a path without end": "GET /" + "a" * MAX_HEAD_BYTES,
    "empty lines without end": "\r\n" * MAX_HEAD_BYTES,
}

CROWDED = {
    "lists": b"[" + b"[]," * MAX_CONTAINERS + b"[]]",
    "objects": b"[" + b"{}," * MAX_CONTAINERS + b"{}]",
    "numbers": b"[" + b"1," * MAX_VALUES + b"1]",
    "texts": b"[" + b'"",' * MAX_VALUES + b'""]',
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(redis_server: RedisServer) -> AsyncIterator[Served]:
    """One server for all: each case has its own connection."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    settings = Settings(redis_url=redis_server.url, max_body_bytes=MAX_BODY, max_file_bytes=1024)
    async with serve(settings) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def worker(served: Served) -> AsyncIterator[ScriptedWorker]:
    joined = await ScriptedWorker.join(served.redis_url, "small")
    yield joined
    await joined.close()


async def forget(served: Served, body: bytes) -> None:
    """Cancels the job that was accepted."""
    await served.http.delete(f"{JOBS}/{orjson.loads(body)['id']}")


@pytest.mark.parametrize("case", MALFORMED)
async def test_what_is_no_http_is_400_in_json_and_ends_the_connection(served: Served, *, case: str) -> None:
    async with dial(served) as wire:
        await wire.send(MALFORMED[case])
        answer = await wire.answer()
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert answer.headers["connection"] == "close"
        assert await wire.ends() == b""


@pytest.mark.parametrize("case", TOO_LARGE)
async def test_a_large_head_is_431_while_it_arrives_and_the_client_can_read_that(
    served: Served, *, case: str
) -> None:
    async with dial(served) as wire:
        await wire.send(TOO_LARGE[case].encode())
        answer = await wire.answer()
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
        assert await wire.ends() == b""


async def test_a_head_within_the_limits_is_taken(served: Served) -> None:
    headers = "".join(f"x{n}: {'a' * 250}\r\n" for n in range(MAX_HEADERS - 1))
    async with dial(served) as wire:
        await wire.send(f"{HEALTH}{headers}\r\n".encode())
        assert (await wire.answer()).status == 200


async def test_an_offer_to_speak_another_protocol_does_not_cost_the_body(served: Served) -> None:
    """Java's HTTP client makes it with every first request."""
    offer = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQCAAAA")
    async with dial(served) as wire:
        for body in (post(JOBS, *offer), post(JOBS, *offer, CHUNKED, body=chunked(BODY), length=False)):
            await wire.send(body)
            answer = await wire.answer()
            assert answer.status == 202
            await forget(served, answer.body)


async def test_a_trailer_adds_no_header_to_a_request_that_is_under_way(served: Served) -> None:
    trailer = "X-Headway-Class: P0\r\n" * 1000
    async with dial(served) as wire:
        await wire.send(post(JOBS, CHUNKED, body=chunked(BODY, trailer=trailer), length=False))
        answer = await wire.answer()
        assert answer.status == 202
        assert orjson.loads(answer.body)["class"] == "P2"
        await forget(served, answer.body)


@pytest.mark.parametrize(
    ("path", "kind"), [(CHAT, ""), (JOBS, ""), ("/v1/batches", ""), ("/v1/files", FORM.split(": ")[1])]
)
async def test_a_compressed_body_is_415_and_not_unfolded(served: Served, *, path: str, kind: str) -> None:
    headers = {"content-encoding": "gzip", "content-type": kind}
    response = await served.http.post(path, content=gzip.compress(BODY), headers=headers)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_encoding"
    assert response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("case", CROWDED)
async def test_json_that_unfolds_to_much_is_refused_before_it_is_parsed(redis_url: str, *, case: str) -> None:
    async with serve(Settings(redis_url=redis_url)) as served:
        response = await served.http.post(JOBS, content=b'{"model":"small","messages":%s}' % CROWDED[case])
    assert response.status_code == 400
    assert "objects and arrays" in response.json()["error"]["message"]


async def test_brackets_in_a_text_are_no_objects(served: Served) -> None:
    text = '\\"{}[]' * MAX_CONTAINERS
    body = chat(messages=[{"role": "user", "content": text}])
    response = await served.http.post(JOBS, json=body)
    assert response.status_code == 413, "of this server"
    body = chat(messages=[{"role": "user", "content": "{" * (MAX_CONTAINERS + 1)}])
    response = await served.http.post(JOBS, json=body)
    assert response.status_code == 202
    await forget(served, response.content)


async def test_a_page_of_another_site_cannot_post_where_no_key_is_needed(served: Served) -> None:
    for origin in ("https://elsewhere.test", "null", "http://x:1"):
        response = await served.http.post(JOBS, json=chat(), headers={"origin": origin})
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "cross_origin"
    response = await served.http.post(JOBS, json=chat(), headers={"origin": served.url})
    assert response.status_code == 202
    await forget(served, response.content)


async def test_who_asks_before_sending_is_told_to_go_on_or_refused_for_good(served: Served) -> None:
    async with dial(served) as wire:
        await wire.send(
            post(JOBS, "expect: 100-continue", f"content-length: {len(BODY)}", body=b"", length=False)
        )
        assert (await wire.head()).status == 100
        await wire.send(BODY)
        answer = await wire.answer()
        assert answer.status == 202
        await forget(served, answer.body)
    async with dial(served) as wire:
        await wire.send(
            post(JOBS, "expect: 100-continue", "content-length: 99999999", body=b"", length=False)
        )
        assert (await wire.answer()).status == 413
        assert await wire.ends() == b"", "what comes next could be the body or another request"


async def test_a_client_that_sends_on_can_read_why_it_was_refused(served: Served) -> None:
    async with dial(served) as wire:
        await wire.send(post(JOBS, "connection: close", body=b"x" * 10 * MAX_BODY))
        assert (await wire.answer()).status == 413
        assert await wire.ends() == b""


async def test_garbage_behind_a_request_does_not_get_into_its_answer(
    served: Served, worker: ScriptedWorker
) -> None:
    async with dial(served) as wire:
        await wire.send(post(CHAT) + b"\x00garbage\r\n\r\n")
        await worker.finish(await worker.claim(), whole_answer("ok"))
        answer = await wire.answer()
        assert (answer.status, answer.body) == (200, whole_answer("ok"))
        assert await wire.ends() == b""


async def test_a_wrong_body_behind_a_request_does_not_get_into_its_answer(
    served: Served, worker: ScriptedWorker
) -> None:
    async with dial(served) as wire:
        await wire.send(post(CHAT) + post(JOBS, CHUNKED, body=b"zz\r\n", length=False))
        await worker.finish(await worker.claim(), whole_answer("ok"))
        assert (await wire.answer()).body == whole_answer("ok")
        assert await wire.ends() == b""


async def test_more_requests_behind_each_other_than_any_client_has_are_not_read(
    served: Served, worker: ScriptedWorker
) -> None:
    async with dial(served) as wire:
        await wire.send(post(CHAT) + f"{HEALTH}\r\n".encode() * 10_000)
        await worker.finish(await worker.claim(), whole_answer("ok"))
        text = await wire.ends()
        assert text.count(b"HTTP/1.1 200 OK") == 1 + MAX_PIPELINED


async def test_large_bodies_at_a_time_have_a_limit_of_their_own(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "MOST_BODIES", 1)
    most = MAX_BODY * 6 // 10

    async def pieces() -> AsyncIterator[bytes]:
        yield b" " * most
        held.set()
        await ended.wait()

    held, ended = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(served.http.post(JOBS, content=pieces()))
    await held.wait()
    response = await served.http.post(JOBS, content=b" " * most)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
    ended.set()
    assert (await first).status_code == 400, "it was read, and is no JSON"
    assert (await served.http.post(JOBS, content=b" " * most)).status_code == 400, "the room is free again"


async def test_a_form_of_unknown_length_is_413_also_outside_its_file(served: Served) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n--b--\r\n'
        for _ in range(100):
            yield b"x" * 1024

    response = await served.http.post(
        "/v1/files", content=pieces(), headers={"content-type": FORM.split(": ")[1]}
    )
    assert response.status_code == 413
