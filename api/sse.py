"""Server-sent events: framing, comment pings while nothing comes, and noticing that the client has gone.

Source: WHATWG HTML, section 9.2 (event streams).
"""

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.types import Receive, Send

from api.errors import ClientGone
from api.rendering import Headers
from broker.stream import Mailbox

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
FIXED_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the stream back
]


def data_events(payloads: bytes) -> bytes:
    """One event for each line of `payloads`, in one buffer."""
    return b"data: " + payloads.replace(b"\n", b"\n\ndata: ") + b"\n\n"


def named_event(name: str, data: bytes, *, event_id: str | None = None) -> bytes:
    """`data` without line breaks. Without an id the reader's last event id stays as it is."""
    head = f"event: {name}\n" if event_id is None else f"id: {event_id}\nevent: {name}\n"
    return head.encode() + b"data: " + data + b"\n\n"


class EventStream:
    """The response. Headers go out with the first event, or after `ping_s` without one; until then a status may follow.

    `headers` may be added to until `started`. Writing waits while the client reads slowly.
    """

    def __init__(self, send: Send, headers: Headers, *, ping_s: float) -> None:
        self.started = False
        self.headers = headers
        self._send = send
        self._ping_s = ping_s
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(ping_s, self._tick)
        self._ping: asyncio.Task[None] | None = None

    async def write(self, events: bytes) -> None:
        if not self.started:
            await self._start()
        self._written_at = self._loop.time()
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def finish(self, events: bytes = b"") -> None:
        """The last write."""
        self.stop()
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    def stop(self) -> None:
        """No more pings. Idempotent."""
        self._timer.cancel()
        if self._ping is not None and not self.started:
            self._ping.cancel()  # it must not begin an answer that is to become an error

    async def _start(self) -> None:
        self.started = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*FIXED_HEADERS, *self.headers]}
        )

    def _tick(self) -> None:
        silent_s = self._loop.time() - self._written_at
        if silent_s >= self._ping_s * 0.9 and (self._ping is None or self._ping.done()):
            self._ping = self._loop.create_task(self.write(PING))
            silent_s = 0.0
        self._timer = self._loop.call_later(max(self._ping_s - silent_s, 0.01), self._tick)


@contextlib.contextmanager
def attended(receive: Receive, box: Mailbox) -> Iterator[None]:
    """Reading from `box` ends with ClientGone as soon as the client hangs up. The request's body must have been read."""
    watcher = asyncio.create_task(_watch(receive, box))
    try:
        yield
    finally:
        watcher.cancel()


async def hung_up(receive: Receive) -> None:
    """Returns when the client has. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _watch(receive: Receive, box: Mailbox) -> None:
    await hung_up(receive)
    box.leave(ClientGone("the client hung up"))
