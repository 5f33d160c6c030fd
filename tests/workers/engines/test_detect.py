"""Which dialect a server speaks, found out from servers that answer as recorded."""

import pytest
from aiohttp import web

from tests.workers.engines import recorded
from tests.workers.engines.conftest import Serve
from tests.workers.engines.script import Script
from workers.engine import EngineLimits, EngineUnavailable
from workers.engines.exchange import HttpOptions
from workers.engines.llamacpp import LlamaCppEngine
from workers.engines.openai_http import OpenAIEngine

ANONYMOUS = {"object": "list", "data": [{"id": "m", "owned_by": "somebody"}]}


async def dialect_of(serve: Serve, pages: dict[str, object]) -> str:
    return (await serve(Script().answer, dialect="auto", pages=pages)).name.partition(" at ")[0]


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp", "sglang", "tgi", "ollama"])
async def test_each_kind_of_server_is_known(serve: Serve, dialect: str) -> None:
    assert await dialect_of(serve, recorded.pages(dialect)) == dialect


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp", "sglang", "tgi", "ollama"])
async def test_each_is_known_behind_a_proxy_that_renames_the_owner(serve: Serve, dialect: str) -> None:
    assert await dialect_of(serve, recorded.pages(dialect) | {"/v1/models": ANONYMOUS}) == dialect


async def test_llamacpp_is_known_by_its_server_header_alone(serve: Serve) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response(ANONYMOUS, headers={"Server": "llama.cpp"})

    assert await dialect_of(serve, {"/v1/models": models}) == "llamacpp"


@pytest.mark.asyncio(loop_scope="session")
async def test_the_running_llamacpp_is_known(llamacpp: LlamaCppEngine) -> None:
    url, key = llamacpp.address
    engine = OpenAIEngine(url, options=HttpOptions(api_key=key))
    await engine.start()
    assert engine.name == f"llamacpp at {url}"
    assert await engine.limits() == EngineLimits(4, 1024, "SmolLM2-135M-Instruct")
    await engine.close()


@pytest.mark.parametrize(
    "pages", [{}, {"/v1/models": ANONYMOUS}, {"/metrics": "# HELP vllm:x\nprocess_x 1\n"}]
)
async def test_a_server_without_signs_speaks_openais_api(serve: Serve, pages: dict[str, object]) -> None:
    assert await dialect_of(serve, pages) == "openai"


async def test_a_server_that_refuses_the_key_is_not_guessed_at(serve: Serve) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401)

    with pytest.raises(EngineUnavailable, match="401"):
        await serve(Script().answer, dialect="auto", pages={"/v1/models": refuse})


async def test_pages_that_are_refused_or_broken_are_no_signs(serve: Serve) -> None:
    async def fail(request: web.Request) -> web.Response:
        return web.Response(status=500, text='{"max_concurrent_requests": 3}')

    pages: dict[str, object] = {"/info": fail, "/props": "<html>", "/api/ps": [], "/metrics": fail}
    assert await dialect_of(serve, pages) == "openai"


async def test_the_dialect_is_found_anew_when_another_server_takes_the_address(serve: Serve) -> None:
    owners = ["vllm", "sglang"]

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": owners[0]}]})

    engine = await serve(Script().answer, dialect="auto", pages={"/v1/models": models})
    owners.pop(0)
    await engine.start()
    assert engine.name.startswith("sglang at ")


async def test_a_server_that_was_away_is_met_anew_when_it_is_back(serve: Serve) -> None:
    owners = ["vllm"]

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": owners[0]}]} if owners else None)

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=200 if owners else 503)

    engine = await serve(Script().answer, dialect="auto", pages={"/v1/models": models, "/health": health})
    assert await engine.health()
    owners.clear()
    assert not await engine.health()
    assert not await engine.health()
    assert engine.name.startswith("vllm at ")
    owners.append("sglang")
    assert await engine.health()
    assert engine.name.startswith("sglang at ")


@pytest.mark.parametrize(("named", "warned"), [("vllm", False), ("sglang", True), ("openai", True)])
async def test_a_wrong_name_is_warned_about_and_kept(
    serve: Serve, caplog: pytest.LogCaptureFixture, named: str, warned: bool
) -> None:
    engine = await serve(Script().answer, dialect=named, pages=recorded.pages("vllm"))
    assert engine.name.startswith(f"{named} at ")
    assert ("looks like vllm" in caplog.text) == warned
