"""The fields that Headway sets, and what becomes of those that a server refuses."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from tests.conditions import wait_until
from tests.workers.engines import recorded
from tests.workers.engines.calls import chat, collect, completion, embedding
from tests.workers.engines.conftest import Serve
from tests.workers.engines.script import Script
from tests.workers.engines.test_sse import chunk, usage_chunk, wire
from workers.engine import EngineBusy, EngineCall, EngineRejected
from workers.engines.request import cache_salt

STREAM = wire(chunk("a"), chunk("", finish="stop"), usage_chunk(), b"[DONE]")
PRIORITY_REFUSED = (
    b'{"error":{"message":"Got priority 2 but Priority scheduling is not enabled.","code":400}}'
)


def call(rank: int = 0, *, tenant: str = "default", **fields: Any) -> EngineCall:
    plain = chat(**fields)
    return EngineCall(plain.job_id, plain.endpoint, plain.body, plain.stream, rank=rank, tenant=tenant)


class Refusing(Script):
    """Answers `refusal` while `field` is in the body."""

    def __init__(self, field: str, refusal: bytes, *, status: int = 400) -> None:
        super().__init__(STREAM)
        self.field = field
        self.refusal = refusal
        self.refusal_status = status

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.field in body:
            self.bodies.append(body)
            return web.Response(status=self.refusal_status, body=self.refusal)
        return await super().answer(request)


@pytest.mark.parametrize(("rank", "sent"), [(0, None), (1, 1), (3, 3)])
async def test_vllm_gets_the_rank_and_nothing_for_the_most_urgent(
    serve: Serve, rank: int, sent: int | None
) -> None:
    script = Script(STREAM)
    await collect(await serve(script.answer, dialect="vllm"), call(rank, priority=-7))
    assert script.bodies[0].get("priority") == sent


@pytest.mark.parametrize(("rank", "sent"), [(0, 0), (3, -3)])
async def test_sglang_gets_it_with_the_other_sign(serve: Serve, rank: int, sent: int) -> None:
    script = Script(STREAM)
    engine = await serve(script.answer, dialect="sglang", pages=recorded.pages("sglang"))
    await collect(engine, call(rank))
    assert script.bodies[0]["priority"] == sent


async def test_sglang_gets_none_unless_it_schedules_by_it(serve: Serve) -> None:
    script = Script(STREAM)
    await collect(await serve(script.answer, dialect="sglang"), call(3))
    assert "priority" not in script.bodies[0]


@pytest.mark.parametrize(
    ("refusal", "status"), [(PRIORITY_REFUSED, 400), (recorded.raw("sglang/error_priority.json"), 503)]
)
async def test_a_refused_priority_is_left_out_from_then_on(serve: Serve, refusal: bytes, status: int) -> None:
    script = Refusing("priority", refusal, status=status)
    dialect = "vllm" if status == 400 else "sglang"
    engine = await serve(script.answer, dialect=dialect, pages=recorded.pages(dialect))
    for _ in range(2):
        _, final = await collect(engine, call(2))
        assert final.finish_reason == "stop"
    assert ["priority" in body for body in script.bodies] == [True, False, False]
    await engine.start()
    await collect(engine, call(2))
    assert "priority" in script.bodies[3], "a server that was started anew may have another scheduler"


async def test_requests_that_are_refused_at_the_same_time_are_all_sent_again(serve: Serve) -> None:
    class Together(Refusing):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            if "priority" in await request.json():
                self.waiting += 1
                await wait_until(lambda: self.waiting == 4)
            return await super().answer(request)

        waiting = 0

    engine = await serve(
        Together("priority", PRIORITY_REFUSED).answer, dialect="vllm", pages=recorded.pages("vllm")
    )
    calls = [replace(call(2), job_id=str(n)) for n in range(4)]
    ends = await asyncio.gather(*(collect(engine, each) for each in calls))
    assert [final.finish_reason for _, final in ends] == ["stop"] * 4


async def test_a_server_that_knows_no_stream_options_is_asked_without(serve: Serve) -> None:
    script = Refusing("stream_options", b'{"error": "Unrecognized request argument: stream_options"}')
    _, final = await collect(await serve(script.answer), call())
    assert final.finish_reason == "stop"
    assert ["stream_options" in body for body in script.bodies] == [True, False]


async def test_a_refusal_that_quotes_the_caller_changes_nothing_for_others(serve: Serve) -> None:
    script = Script(b'{"error": "what is stream_options?"}', status=400)
    engine = await serve(script.answer)
    for _ in range(2):
        with pytest.raises(EngineRejected):
            await collect(engine, call())
    assert ["stream_options" in body for body in script.bodies] == [True, False, True, False]


async def test_what_the_caller_sent_himself_is_his_to_be_refused(serve: Serve) -> None:
    script = Refusing("stream_options", b"stream_options")
    with pytest.raises(EngineRejected):
        await collect(await serve(script.answer), call(stream_options={"include_usage": True}))
    assert len(script.bodies) == 1


async def test_prefixes_of_tenants_are_kept_apart(serve: Serve) -> None:
    script = Script(STREAM)
    engine = await serve(script.answer, dialect="vllm")
    calls = [
        call(),
        call(tenant="a"),
        call(tenant="b"),
        call(tenant="a"),
        call(tenant="a", cache_salt="mine"),
    ]
    for each in calls:
        await collect(engine, each)
    none, first, other, again, own = (body.get("cache_salt") for body in script.bodies)
    assert none is None
    assert first == again
    assert len({first, other, own}) == 3
    assert all(isinstance(salt, str) and salt for salt in (first, other, own))


def test_nobody_can_choose_another_tenants_salt() -> None:
    theirs = cache_salt("them", None)
    assert theirs not in (cache_salt("me", theirs), cache_salt("default", theirs))
    assert cache_salt("default", "") != ""


async def test_a_server_without_salts_gets_none(serve: Serve) -> None:
    script = Script(STREAM)
    await collect(await serve(script.answer, dialect="tgi"), call(tenant="a"))
    assert "cache_salt" not in script.bodies[0]


class Aborting(Script):
    """Remembers what it was told to abort."""

    def __init__(self, *parts: bytes, hang: bool = False) -> None:
        super().__init__(*parts, hang=hang)
        self.aborted: list[object] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/abort_request":
            self.aborted.append((await request.json())["rid"])
            return web.Response()
        return await super().answer(request)


async def test_sglang_is_told_which_request_to_abort(serve: Serve) -> None:
    script = Aborting(wire(chunk("a")), hang=True)
    engine = await serve(script.answer, dialect="sglang")
    items = engine.generate(call())
    await anext(items)
    await items.aclose()
    await wait_until(lambda: script.aborted)
    assert script.aborted == [script.bodies[0]["rid"]]


async def test_an_answer_that_ended_is_not_aborted_and_each_attempt_has_its_own_id(serve: Serve) -> None:
    script = Aborting(STREAM)
    engine = await serve(script.answer, dialect="sglang")
    for _ in range(2):
        await collect(engine, call())
    assert script.aborted == []
    assert script.bodies[0]["rid"] != script.bodies[1]["rid"]


@pytest.mark.parametrize("several", [chat(n=2), completion(["a", "b"]), embedding(["a", "b"])])
async def test_a_request_for_several_answers_has_no_id(serve: Serve, several: EngineCall) -> None:
    script = Aborting(STREAM if several.stream else b'{"data": []}')
    await collect(await serve(script.answer, dialect="sglang"), several)
    assert "rid" not in script.bodies[0]


async def test_embeddings_get_no_stream_fields(serve: Serve) -> None:
    script = Script(b'{"data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}}')
    await collect(await serve(script.answer, dialect="vllm"), embedding("x"))
    assert set(script.bodies[0]) == {"model", "input"}


@pytest.mark.parametrize(
    ("dialect", "answer", "status", "error"),
    [
        ("vllm", "vllm/error_busy.json", 503, EngineBusy),
        ("vllm", "vllm/error_prompt_too_long.json", 400, EngineRejected),
        ("vllm", "vllm/error_unknown_model.json", 404, EngineRejected),
        ("sglang", "sglang/error_busy.json", 503, EngineBusy),
        ("tgi", "tgi/error_busy.json", 429, EngineBusy),
        ("ollama", "ollama/error_busy.json", 503, EngineBusy),
        ("llamacpp", "llamacpp/bad_request.json", 400, EngineRejected),
    ],
)
async def test_each_servers_refusals_are_understood(
    serve: Serve, dialect: str, answer: str, status: int, error: type[Exception]
) -> None:
    script = Script(recorded.raw(answer), status=status)
    with pytest.raises(error):
        await collect(await serve(script.answer, dialect=dialect, pages=recorded.pages(dialect)), call(1))
    assert len(script.bodies) == 1
