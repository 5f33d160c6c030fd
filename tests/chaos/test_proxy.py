"""The proxy does to connections what it is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.tcp_proxy import TcpProxy

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with TcpProxy.before("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()


async def connected(proxy: TcpProxy) -> Pair:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def answer(pair: Pair) -> bytes:
    pair[1].write(b"x")
    return await pair[0].read(1)


async def test_stalled_connection_goes_on_later(proxy: TcpProxy) -> None:
    pair = await connected(proxy)
    proxy.slow(0.01)
    assert await answer(pair) == b"x"
    proxy.stall()
    late = asyncio.create_task(answer(pair))
    done, _ = await asyncio.wait([late], timeout=0.05)
    assert not done
    proxy.let_pass()
    assert await late == b"x"
    pair[1].close()


async def test_cut_connections_are_gone_and_new_ones_are_refused_for_as_long(proxy: TcpProxy) -> None:
    old = await connected(proxy)
    assert await answer(old) == b"x"
    proxy.cut()
    refused = await connected(proxy)
    for pair in (old, refused):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await pair[0].readexactly(1)
        pair[1].close()
    proxy.let_pass()
    new = await connected(proxy)
    assert await answer(new) == b"x"
    new[1].close()
