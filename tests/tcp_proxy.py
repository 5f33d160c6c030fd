"""A TCP relay on loopback in front of one server, for what a network does: cut, stall, slow.

async with TcpProxy.before("127.0.0.1", port) as proxy:
    proxy.cut()  # connections are reset and new ones are closed at once, until `proxy.let_pass()`
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Self

PIECE_BYTES = 1 << 16


class TcpProxy:
    """`mode` is one of pass, cut, stall (connections stay and nothing moves), slow (each piece comes `delay_s` later)."""

    def __init__(self, host: str, port: int) -> None:
        """The address of the server behind it, which `target` may change for new connections."""
        self.mode = "pass"
        self.target = (host, port)
        self._delay_s = 0.0
        self._epoch = 0  # connections of an earlier one are dead
        self._moving = asyncio.Event()
        self._moving.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    @asynccontextmanager
    async def before(cls, host: str, port: int) -> AsyncIterator[Self]:
        proxy = cls(host, port)
        proxy._server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        try:
            yield proxy
        finally:
            await proxy._close()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Those that are open now."""
        return len(self._tasks)

    def let_pass(self) -> None:
        self._be("pass")

    def cut(self) -> None:
        self._be("cut")
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        self._be("stall")
        self._moving.clear()

    def slow(self, delay_s: float) -> None:
        self._be("slow")
        self._delay_s = delay_s

    def swallow(self) -> None:
        """Connections that are open stay so and carry nothing any more; new ones pass."""
        self._be("pass")
        self._epoch += 1

    def _be(self, mode: str) -> None:
        self.mode = mode
        self._delay_s = 0.0
        self._moving.set()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with self._held(writer):
                await self._moving.wait()
                if self.mode != "cut":
                    await self._relay(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            return
        with self._held(far_writer):
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    @contextlib.contextmanager
    def _held(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One way. When it ends, so does the other: nobody who is relayed here closes only half."""
        epoch = self._epoch
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._moving.wait()
                if epoch != self._epoch:
                    continue
                writer.write(piece)
                await writer.drain()
        writer.close()
