"""Which answers of a health page mean that a server is well."""

import pytest
from aiohttp import web

from tests.workers.engines.conftest import Serve
from tests.workers.engines.script import Script


@pytest.mark.parametrize(
    ("dialect", "status", "well"),
    [
        ("vllm", 200, True),
        ("vllm", 429, True),
        ("vllm", 503, False),
        ("vllm", 500, False),
        ("openai", 503, True),
        ("openai", 404, True),
        ("openai", 500, False),
        ("openai", 401, False),
    ],
)
async def test_busy_server_is_not_a_dead_one(serve: Serve, dialect: str, status: int, well: bool) -> None:
    """vLLM's 503 says that its engine has died; a server without a health page has no other word for being full."""
    now = [200]

    async def page(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]}, status=now[0])

    engine = await serve(Script().answer, dialect=dialect, pages={"/v1/models": page, "/health": page})
    now[0] = status
    assert await engine.health() is well
