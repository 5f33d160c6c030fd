"""A real llama.cpp for the whole session, and a server that misbehaves as a test tells it."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from workers.engines.llamacpp import LlamaCppEngine
from workers.engines.openai_http import OpenAIEngine

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[OpenAIEngine]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llamacpp() -> AsyncIterator[LlamaCppEngine]:
    """The embedded model with four slots of 1,024 tokens."""
    engine = LlamaCppEngine(slots=4, context_tokens=1024)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(handler, **arguments of OpenAIEngine)`: an engine whose POSTs the handler answers."""
    servers: list[TestServer] = []
    engines: list[OpenAIEngine] = []

    async def start(
        handler: Handler, *, pages: dict[str, object] | None = None, **arguments: object
    ) -> OpenAIEngine:
        app = web.Application()
        app.router.add_post("/{path:.*}", handler)
        for path, page in ({"/v1/models": {"data": [{"id": "real-name"}]}} | (pages or {})).items():
            app.router.add_get(path, page if callable(page) else _page(page))
        servers.append(TestServer(app))
        await servers[-1].start_server()
        arguments = {"dialect": "openai"} | arguments
        engines.append(OpenAIEngine(str(servers[-1].make_url("/")), **arguments))  # type: ignore[arg-type]
        await engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        await engine.close()
    for server in servers:
        await server.close()


def _page(page: object) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=page) if isinstance(page, str) else web.json_response(page)

    return answer
