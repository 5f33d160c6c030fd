"""What becomes of a job whose engine crashes, hangs, refuses, or answers nonsense: the table in docs/engines.md.

A real client and a real worker on a real Redis, before a server that misbehaves once and then answers well.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from broker.fleet import WorkerRecord
from broker.job import JobView, Status
from broker.policy import Limits
from tests.conditions import wait_until
from tests.workers.conftest import POOL, Maker, Rig
from tests.workers.engines.test_sse import chunk, usage_chunk, wire
from workers.engines.exchange import HttpOptions
from workers.engines.openai_http import OpenAIEngine

BODY = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":8}'
GOOD = wire(chunk("well"), chunk("", finish="stop"), usage_chunk(), b"[DONE]")
RECORD = WorkerRecord("w", POOL, "vllm at x", "m", 1, 0, "ready", 1, "here")
PATIENCE = HttpOptions(first_byte_s=0.2, between_bytes_s=0.2, answer_s=0.2)

Misbehave = Callable[["Server", web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The first request gets `first`, all others a good answer. `go_on`: set when the first chunk has arrived."""

    def __init__(self, first: Misbehave) -> None:
        self.first = first
        self.then = well
        self.requests = 0
        self.go_on = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        return await (self.first if self.requests == 1 else self.then)(self, request)


async def well(server: Server, request: web.Request) -> web.StreamResponse:
    return await begin(request, GOOD)


async def begin(request: web.Request, sent: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(sent)
    return response


def hang_up(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def crash(server: Server, request: web.Request) -> web.StreamResponse:
    hang_up(request)
    return web.Response()


async def fail(server: Server, request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="CUDA error")


async def no_room(server: Server, request: web.Request) -> web.StreamResponse:
    return web.Response(status=503, headers={"Retry-After": "0"})


async def stay_silent(server: Server, request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def talk_garbage(server: Server, request: web.Request) -> web.StreamResponse:
    return await begin(request, b"<html>nginx</html>\n\n")


async def crash_in_the_middle(server: Server, request: web.Request) -> web.StreamResponse:
    response = await begin(request, wire(chunk("well, ")))
    await server.go_on.wait()
    hang_up(request)
    return response


async def hang_in_the_middle(server: Server, request: web.Request) -> web.StreamResponse:
    response = await begin(request, wire(chunk("well, ")))
    await asyncio.sleep(3600)
    return response


async def err_in_the_middle(server: Server, request: web.Request) -> web.StreamResponse:
    response = await begin(request, wire(chunk("well, ")))
    await server.go_on.wait()
    await response.write(wire(b'{"error":{"message":"out of memory","code":500}}'))
    return response


async def call_off_in_the_middle(server: Server, request: web.Request) -> web.StreamResponse:
    response = await begin(request, wire(chunk("well, ")))
    await server.go_on.wait()
    await response.write(wire(chunk("", finish="abort"), b"[DONE]"))
    return response


@pytest.fixture
async def before(worker: Maker) -> AsyncIterator[Callable[[Misbehave], Awaitable[tuple[Server, Rig]]]]:
    """`await before(first)`: the server that does it, and a worker in front of it."""
    servers: list[TestServer] = []
    engines: list[OpenAIEngine] = []

    async def start(first: Misbehave) -> tuple[Server, Rig]:
        server = Server(first)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", server.answer)
        app.router.add_get("/v1/models", _models)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        engine: Any = OpenAIEngine(str(servers[-1].make_url("/")), dialect="openai", options=PATIENCE)
        engines.append(engine)
        await engine.start()
        engine.slots = 2
        return server, await worker(engine, limits=Limits(max_errors=1))

    yield start
    for engine in engines:
        await engine.close()
    for each in servers:
        await each.close()


async def _models(request: web.Request) -> web.Response:
    """Keeps no connection: a request on a kept one would be sent again when that breaks."""
    return web.json_response({"data": [{"id": "m"}]}, headers={"Connection": "close"})


Before = Callable[[Misbehave], Awaitable[tuple[Server, Rig]]]


async def run(server: Server, rig: Rig, *, begun: bool = False, **job: object) -> JobView:
    job_id = await rig.submit(**({"body": BODY} | job))

    async def first_token() -> bool:
        return (await rig.producer.get(job_id)).first_token is not None

    if begun:
        await wait_until(first_token)
        server.go_on.set()
    return await rig.ended(job_id)


def code_of(view: JobView) -> str:
    return str(orjson.loads(view.error or b"{}")["code"])


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize(
    ("first", "errors"),
    [(crash, 1), (fail, 1), (stay_silent, 1), (talk_garbage, 1), (no_room, 0)],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_before_the_first_byte_another_attempt_is_made(
    before: Before, first: Misbehave, errors: int, attached: bool
) -> None:
    server, rig = await before(first)
    view = await run(server, rig, attached=attached)
    assert (view.status, view.attempts, view.errors) == (Status.SUCCEEDED, 2, errors)
    assert server.requests == 2, "one attempt is one request"
    assert view.usage["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (crash_in_the_middle, "engine_broken"),
        (hang_in_the_middle, "engine_timeout"),
        (err_in_the_middle, "engine_broken"),
        (call_off_in_the_middle, "engine_broken"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_after_it_a_connection_gets_an_error_and_a_polled_job_begins_anew(
    before: Before, first: Misbehave, code: str
) -> None:
    server, rig = await before(first)
    view = await run(server, rig, begun=True, attached=True)
    assert (view.status, view.attempts, code_of(view)) == (Status.FAILED, 1, code)
    assert b"out of memory" not in (view.error or b"")

    server.requests = 0
    server.go_on.clear()
    view = await run(server, rig, begun=True)
    assert (view.status, view.attempts, view.errors) == (Status.SUCCEEDED, 2, 1)
    assert orjson.loads(view.result or b"")["choices"][0]["message"]["content"] == "well"


async def test_an_engine_that_always_fails_makes_a_dead_letter(before: Before) -> None:
    server, rig = await before(fail)
    server.then = fail
    view = await run(server, rig)
    assert (view.status, view.errors, server.requests) == (Status.FAILED, 2, 2)
    assert code_of(view) == "engine_failed"


async def test_a_bad_request_fails_at_once_in_the_engines_words(before: Before) -> None:
    async def refuse(server: Server, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long", "code": 400}}, status=400)

    server, rig = await before(refuse)
    view = await run(server, rig)
    assert (view.status, view.attempts, server.requests) == (Status.FAILED, 1, 1)
    assert orjson.loads(view.error or b"")["message"] == "too long"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 5, "completion_tokens": 0},
        {"prompt_tokens": -5, "completion_tokens": -1},
        {"prompt_tokens": 5, "completion_tokens": 10**9},
        {"prompt_tokens": "five", "completion_tokens": None},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_usage_that_cannot_be_is_counted_again_and_marked(
    before: Before, usage: dict[str, Any] | None, stream: bool
) -> None:
    async def lie(server: Server, request: web.Request) -> web.StreamResponse:
        told = {} if usage is None else {"usage": usage}
        if not stream:
            message = {"role": "assistant", "content": "well, well"}
            return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]} | told)
        words = [chunk("well"), chunk(", "), chunk("well"), chunk("", finish="stop")]
        return await begin(request, wire(*words, orjson.dumps({"choices": []} | told), b"[DONE]"))

    server, rig = await before(lie)
    view = await run(server, rig, stream=stream)
    assert (view.status, view.recounted) == (Status.SUCCEEDED, True)
    assert 1 <= view.usage["prompt_tokens"] <= 20
    assert 1 <= view.usage["completion_tokens"] <= 8


async def test_right_usage_is_not_marked(before: Before) -> None:
    server, rig = await before(well)
    view = await run(server, rig)
    assert not view.recounted


async def test_a_busy_engine_is_left_alone_for_as_long_as_it_asks(before: Before) -> None:
    async def ask_for_time(server: Server, request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": "20"})

    server, rig = await before(ask_for_time)
    job_id = await rig.submit(body=BODY)
    await wait_until(lambda: rig.puller._busy_until > time.monotonic() + 10)
    view = await rig.producer.get(job_id)
    assert (view.status, view.errors, server.requests) == (Status.QUEUED, 0, 1)
    await rig.producer.cancel(job_id)


async def test_what_its_engine_had_cached_is_counted_for_the_worker(before: Before) -> None:
    """The good answer says 2 of 5."""
    server, rig = await before(well)
    await run(server, rig)
    await run(server, rig)
    assert (rig.puller.prompt_tokens, rig.puller.cached_tokens) == (10, 4)
    assert replace(RECORD, prompt_tokens=10, cached_tokens=4).prefix_hit_share == 0.4
    assert RECORD.prefix_hit_share is None
