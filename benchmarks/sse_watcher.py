"""A watcher of one job that costs its own process little: ten thousand of them run in it."""

import asyncio
import re
import time

TIME = re.compile(rb'"at":(\d+)')  # when a chunk was written, ns of the machine's clock


class Watcher(asyncio.Protocol):
    """One connection to `/v1/jobs/{id}/events`. `opened` when its first event is there; delays are seconds."""

    def __init__(self, job_id: str, delays: list[float] | None = None) -> None:
        self._ask = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        self._delays = delays
        self._begun = b""
        self.opened = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._ask)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self.opened.done():
            self.opened.set_exception(RuntimeError(f"closed before its first event: {self._begun[:200]!r}"))

    def data_received(self, data: bytes) -> None:
        if self._delays is not None:
            now = time.monotonic_ns()
            self._delays.extend((now - int(at)) / 1e9 for at in TIME.findall(data))
        if not self.opened.done():
            self._begun += data
            if b"event: status" in self._begun:
                self.opened.set_result(None)

    def close(self) -> None:
        assert self.transport is not None
        self.transport.abort()
