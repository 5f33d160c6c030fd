"""HTTP by hand, for requests that no library would send and clients that do not behave."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from tests.api.harness import Served, chat

BODY = orjson.dumps(chat())


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` with names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)["error"]
        return found


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def head(self) -> Answer:
        """Of the next answer; its body is still to be read."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return Answer(int(lines[0].split()[1]), headers, b"")

    async def answer(self) -> Answer:
        """The next one, of known length."""
        head = await self.head()
        body = await self.reader.readexactly(int(head.headers.get("content-length", "0")))
        return Answer(head.status, head.headers, body)

    async def ends(self) -> bytes:
        """What is left until the server closes, which it must do."""
        async with asyncio.timeout(10):
            return await self.reader.read()


@contextlib.asynccontextmanager
async def dial(served: Served, *, receive_bytes: int = 0) -> AsyncIterator[Wire]:
    """`receive_bytes`: the kernel's buffer on this side, so that a reader who stops is felt soon."""
    host, port = served.url.removeprefix("http://").split(":")
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 14 if receive_bytes else 1 << 16)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def post(path: str, *headers: str, body: bytes = BODY, length: bool = True) -> bytes:
    """`length`: whether Content-Length is among the headers."""
    lines = [f"POST {path} HTTP/1.1", "host: x", *headers]
    if length:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*pieces: bytes, trailer: str = "") -> bytes:
    parts = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    return b"".join(parts) + b"0\r\n" + trailer.encode() + b"\r\n"
