"""An abort that comes at a bad moment. What goes over the wire is tested in test_openai_http.py."""

from typing import Any, cast

import aiohttp
import pytest

from workers.engine import EngineAborted
from workers.engines.dialects import DIALECTS
from workers.engines.exchange import Exchange, HttpOptions


class Response:
    """Has begun well and would go on for ever."""

    status = 200
    connection = None
    closed = False

    def close(self) -> None:
        self.closed = True


class Session:
    """Its caller is told to stop when the answer is there and nobody has looked at it yet."""

    def __init__(self) -> None:
        self.response = Response()
        self.exchange: Exchange | None = None

    async def post(self, *_: Any, **__: Any) -> Response:
        assert self.exchange is not None
        self.exchange.abort()
        return self.response


async def test_abort_as_the_answer_begins_is_not_lost() -> None:
    session = Session()
    exchange = session.exchange = Exchange(
        cast("aiohttp.ClientSession", session), HttpOptions(), dialect=DIALECTS["openai"], stream=True
    )
    await exchange.open("http://127.0.0.1:1/v1/completions", b"{}", headers={})
    assert session.response.closed
    with pytest.raises(EngineAborted):
        await exchange.read()
