"""The client against a server that answers as engines do on bad days."""

import asyncio
from contextlib import aclosing

import pytest
from aiohttp import web

from tests.conditions import wait_until
from tests.workers.engines.calls import chat, collect, embedding, text_of, whole
from tests.workers.engines.conftest import Serve
from tests.workers.engines.script import Script
from tests.workers.engines.test_sse import chunk, usage_chunk, wire
from workers.engine import (
    Delta,
    EngineAborted,
    EngineBroken,
    EngineBusy,
    EngineFailed,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    Usage,
)
from workers.engines.exchange import HttpOptions
from workers.engines.openai_http import Named, OpenAIEngine

ANSWER = {
    "choices": [{"index": 0, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3},
}


async def test_a_stream_passes_and_its_tokens_are_counted(serve: Serve) -> None:
    script = Script(wire(chunk("a"), chunk("b")), wire(chunk("", finish="stop"), usage_chunk(), b"[DONE]"))
    payloads, final = await collect(await serve(script.answer), chat())
    assert text_of(payloads) == "ab"
    assert all(payload["choices"] for payload in payloads)
    assert (final.body, final.usage, final.finish_reason) == (b"", Usage(5, 3, 2), "stop")


async def test_the_engine_gets_its_own_name_and_is_asked_for_usage(serve: Serve) -> None:
    script = Script(wire(chunk("", finish="stop"), b"[DONE]"))
    engine = await serve(script.answer)
    call = chat(priority=3, seed=7, stream_options={"chunk_size": 2})
    given = dict(call.body)
    await collect(engine, call)
    body = script.bodies[0]
    assert (body["model"], body["stream"], body["seed"]) == ("real-name", True, 7)
    assert body["stream_options"] == {"chunk_size": 2, "include_usage": True}
    assert "priority" not in body
    assert call.body == given


async def test_a_whole_answer_passes_byte_by_byte(serve: Serve) -> None:
    body = (
        b'{ "choices": [{"finish_reason": "stop"}],\n "usage": {"prompt_tokens": 5, "completion_tokens": 3} }'
    )
    script = Script(body[:20], body[20:])
    engine = await serve(script.answer, named=Named("mine"))
    _, final = await collect(engine, chat(stream=False, stream_options={"include_usage": True}))
    assert (final.body, final.usage, final.finish_reason) == (body, Usage(5, 3, 0), "stop")
    assert script.bodies[0]["model"] == "mine"
    assert script.bodies[0]["stream"] is False
    assert "stream_options" not in script.bodies[0]


async def test_an_engine_that_only_streams_answers_whole_all_the_same(serve: Serve) -> None:
    script = Script(wire(chunk("a"), chunk("b"), chunk("", finish="stop"), usage_chunk(), b"[DONE]"))
    answer = await whole(await serve(script.answer, dialect="llamacpp"), chat(stream=False))
    assert answer["choices"][0]["message"]["content"] == "ab"
    assert answer["usage"]["completion_tokens"] == 3
    assert script.bodies[0]["return_progress"] is True


async def test_the_key_is_sent(serve: Serve) -> None:
    seen: list[str | None] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.json_response(ANSWER)

    engine = await serve(handler, options=HttpOptions(api_key="k"))
    await collect(engine, chat(stream=False))
    assert seen == ["Bearer k"]
    assert "api_key='k'" not in repr(HttpOptions(api_key="k"))


@pytest.mark.parametrize(
    ("status", "retry_after", "wait_s"), [(503, "7", 7.0), (429, None, 1.0), (503, "soon", 1.0)]
)
async def test_an_engine_without_room_is_busy(
    serve: Serve, status: int, retry_after: str | None, wait_s: float
) -> None:
    script = Script(b"no", status=status)
    script.headers = {"Retry-After": retry_after} if retry_after else {}
    with pytest.raises(EngineBusy) as caught:
        await collect(await serve(script.answer), chat())
    assert caught.value.retry_after_s == wait_s
    assert caught.value.retryable


@pytest.mark.parametrize("status", [400, 404, 413, 422, 501])
async def test_a_bad_request_is_the_callers_fault(serve: Serve, status: int) -> None:
    script = Script(b'{"error":', b'"words of the prompt"}', status=status)
    with pytest.raises(EngineRejected) as caught:
        await collect(await serve(script.answer), chat())
    assert (caught.value.status, caught.value.body) == (status, b'{"error":"words of the prompt"}')
    assert "prompt" not in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, EngineUnavailable), (403, EngineUnavailable), (500, EngineFailed), (502, EngineUnavailable)],
)
async def test_the_engines_own_trouble_is_not_the_callers(
    serve: Serve, status: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await collect(await serve(Script(b"{}", status=status).answer), chat())


async def test_a_5xx_that_names_the_request_is_the_callers_fault(serve: Serve) -> None:
    script = Script(b'{"error":{"message":"input (900 tokens) is too large to process."}}', status=500)
    with pytest.raises(EngineRejected) as caught:
        await collect(await serve(script.answer, dialect="llamacpp"), embedding("x"))
    assert caught.value.status == 400


async def test_a_stream_cut_off_is_broken_after_what_it_sent(serve: Serve) -> None:
    engine = await serve(Script(wire(chunk("a")), cut=True).answer)
    async with aclosing(engine.generate(chat())) as items:
        assert await anext(items) == Delta(chunk("a"), 1)
        with pytest.raises(EngineBroken):
            await anext(items)


@pytest.mark.parametrize("parts", [(b"<html>",), (wire(chunk("a")),), (b"data: {\n\n",), ()])
async def test_a_stream_of_garbage_is_broken(serve: Serve, parts: tuple[bytes, ...]) -> None:
    with pytest.raises(EngineBroken):
        await _drain(await serve(Script(*parts).answer), stream=True)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices": [', b"", b'{"error": {"code": 500}}'])
async def test_an_answer_of_garbage_is_broken(serve: Serve, body: bytes) -> None:
    with pytest.raises(EngineBroken):
        await _drain(await serve(Script(body).answer), stream=False)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_endless_answer_is_broken(serve: Serve, stream: bool) -> None:
    engine = await serve(Script(b"x" * 4096).answer, options=HttpOptions(max_answer_bytes=1000))
    with pytest.raises(EngineBroken, match="1000"):
        await _drain(engine, stream=stream)


@pytest.mark.parametrize("stream", [True, False])
async def test_no_first_byte_in_time_is_a_timeout_and_ends_the_request(serve: Serve, stream: bool) -> None:
    script = Script(hang=True)
    engine = await serve(script.answer, options=HttpOptions(first_byte_s=0.05, answer_s=0.05))
    with pytest.raises(EngineTimeout):
        await _drain(engine, stream=stream)
    await wait_until(script.left.is_set)


async def test_silence_in_the_middle_is_a_timeout_and_ends_the_request(serve: Serve) -> None:
    script = Script(wire(chunk("a")), hang=True)
    engine = await serve(script.answer, options=HttpOptions(between_bytes_s=0.05))
    with pytest.raises(EngineTimeout, match="middle"):
        await _drain(engine, stream=True)
    await wait_until(script.left.is_set)


async def test_a_slow_reader_is_no_silent_engine(serve: Serve) -> None:
    read = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for text in ("a", "b"):
            await response.write(wire(chunk(text)))
            await read.wait()
            read.clear()
        await response.write(wire(chunk("c", finish="stop")))
        return response

    engine = await serve(handler, options=HttpOptions(between_bytes_s=0.02))
    async with aclosing(engine.generate(chat())) as items:
        for text in ("a", "b"):
            assert await anext(items) == Delta(chunk(text), 1)
            read.set()
        exchange = engine._exchanges["job"]
        timer = exchange._watchdog
        assert timer is not None
        await wait_until(lambda: exchange._watchdog is not timer, what="the limit to pass unnoticed")
        assert await anext(items) == Delta(chunk("c", finish="stop"), 1)


@pytest.mark.parametrize("parts", [(), (wire(chunk("a")),)])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["abort", "cancel", "close"])
async def test_calling_off_ends_the_request_in_the_engine(
    serve: Serve, parts: tuple[bytes, ...], stream: bool, how: str
) -> None:
    script = Script(*parts, hang=True)
    engine = await serve(script.answer)
    task = asyncio.create_task(_drain(engine, stream=stream))
    await script.sent.wait()
    if how == "cancel":
        task.cancel()
    elif how == "abort":
        await engine.abort("job")
        await engine.abort("job")
    else:
        await engine.close()
    with pytest.raises(asyncio.CancelledError if how == "cancel" else EngineAborted):
        await task
    await wait_until(script.left.is_set)
    assert engine._exchanges == {}


async def test_aborting_an_unknown_job_does_nothing(serve: Serve) -> None:
    await (await serve(Script().answer)).abort("nobody")


async def test_kept_connections_that_the_server_closes_are_replaced_however_many(serve: Serve) -> None:
    seen: list[object] = []
    all_open = asyncio.Barrier(3)

    async def handler(request: web.Request) -> web.StreamResponse:
        await request.read()
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("peername"))
        if len(seen) <= 3:
            await all_open.wait()
        elif len(seen) <= 6:
            request.transport.close()
        return web.json_response(ANSWER)

    engine = await serve(handler)
    await asyncio.gather(*(collect(engine, chat(f"job {n}", stream=False)) for n in range(3)))
    await collect(engine, chat(stream=False))
    assert len(seen) == 7
    assert set(seen[:3]) == set(seen[3:6])
    assert seen[6] not in seen[:6]


async def _drain(engine: OpenAIEngine, *, stream: bool) -> None:
    async with aclosing(engine.generate(chat(stream=stream))) as items:
        async for _ in items:
            pass
