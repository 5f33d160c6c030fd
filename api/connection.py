"""uvicorn's HTTP connection, made to hold against slow and hostile clients, and to notice that a client has left.

Heads are bounded; requests that arrive too slowly and answers that nobody reads end the connection; refusals are JSON.
uvicorn has no such limits for this parser, and stops reading while requests are pipelined, so that an end is not seen.
"""

import asyncio
from collections.abc import Iterator

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from api.errors import ApiError, shutting_down
from api.patience import ReaderLimit

MAX_PIPELINED = 16  # more are no client's habit, and each costs memory
MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 * 1024
FAREWELL_S = 0.05  # an idle connection stays open after SIGTERM: a request on its way is refused, not cut


class WatchfulProtocol(ReaderLimit):
    """Reads on while a request is answered; a lost connection ends every request on it."""

    _answering: RequestResponseCycle | None = None
    _partial = True  # a request has begun, or one is due, and has not arrived whole
    _begun = False  # its first byte has come; empty lines are none
    _in_head = True
    _head_bytes = 0
    _body_bytes = 0
    _since = 0.0  # when it began
    _timer: asyncio.TimerHandle | None = None
    _deaf = False  # nothing more is read
    _leaving = False  # the process stops

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn would look at it per request
        if most is not None and len(self.connections) > most:
            self._say(ApiError(503, "too many connections at a time here", code="overloaded").retry_after(1))
            transport.close()
        else:
            self._give(self.patience.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()

    def shutdown(self) -> None:
        """What has been asked is answered and the connection closed; what is asked from now on is refused."""
        self._leaving = True
        if self._is_busy:
            self._answer_last(self.cycle)
        else:
            self.loop.call_later(FAREWELL_S, self.close)

    def close(self) -> None:
        if self._deaf or (self._partial and not self._in_head):
            self._linger()
        else:
            self.transport.close()

    def cut_slow(self) -> None:
        """Ends it if the client does not read what is there for it, or has not sent its body yet."""
        if self.flow.write_paused or (self._partial and not self._in_head):
            self.transport.abort()

    # What arrives

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._partial = True
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, ApiError) else malformed())
            return
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(head_too_large())
        elif self._partial and self._timer is None:
            self._give(self.patience.head_s)
        elif not self._partial and self.timeout_keep_alive_task is None and not self._is_busy:
            # the rest of a body that was refused has come
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _feed(self, data: bytes) -> None:
        """Offers to speak another protocol, such as those of Java's HTTP client, are not taken up."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = b"".join(self._head_without_upgrade()) + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _head_without_upgrade(self) -> Iterator[bytes]:
        yield b"%s %s HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        for name, value in self.headers:
            if name == b"connection":
                kept = b"close" if b"close" in value.lower() else b"keep-alive"
                yield b"connection: %s\r\n" % kept
            elif name not in (b"upgrade", b"http2-settings"):
                yield b"%s: %s\r\n" % (name, value)
        yield b"\r\n"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._partial = self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: the head has been acted upon
        if len(self.headers) >= MAX_HEADERS:
            raise head_too_large()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return
        before = self.cycle
        super().on_headers_complete()
        self._in_head = False
        self._head_bytes = self._body_bytes = 0
        if not self.cycle.keep_alive:
            self._answer_last(self.cycle)
        if not self.pipeline:
            return
        if self._answering is None or self._answering.response_complete:
            self._answering = before
        self.flow.resume_reading()

    def _check_head(self) -> None:
        """Raises ApiError."""
        if self._leaving:
            raise shutting_down()
        if len(self.pipeline) >= MAX_PIPELINED or self.parser.get_method() == b"CONNECT":
            raise malformed()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise head_too_large()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_head:
            return  # the head comes again without its offer to speak another protocol
        super().on_message_complete()
        self._partial, self._begun, self._in_head = False, False, True
        self._stop_timer()

    # What is answered

    @property
    def _is_busy(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        if self._deaf and not self.pipeline:
            return
        super().on_response_complete()
        if self._is_busy or not self._partial or self._in_head or self.transport.is_closing():
            return
        if (
            self.expect_100_continue
        ):  # who was not told to send its body may send another request, or the body
            self._linger()
        else:
            self._stop_timer()
            self._give(self.patience.linger_s)

    def _answer_last(self, cycle: RequestResponseCycle) -> None:
        cycle.keep_alive = False
        cycle.transport = LastAnswer(self)

    def _refuse(self, error: ApiError) -> None:
        """Ends the connection; says why, unless that could be mistaken for another request's answer."""
        if self._is_busy and (self._in_head or self.pipeline):
            self._answer_what_came_before()
            return
        if self._in_head or (self._is_busy and not self.cycle.response_started):
            self._say(error)
        if self._is_busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._linger()

    def _answer_what_came_before(self) -> None:
        """Of pipelined requests, and nothing after them."""
        self._deaf = True
        self._stop_timer()
        last = self.cycle
        if not self._in_head:
            self.pipeline.popleft()  # this one, whose body is wrong
            last = self.pipeline[0][0] if self.pipeline else self._answering or last
        self._answer_last(last)

    def _say(self, error: ApiError) -> None:
        body = orjson.dumps(error.body())
        told = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode() for name, value in (told | error.headers).items()]
        dated = [b"%s: %s\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join((STATUS_LINE[error.status], *dated, *lines, b"\r\n", body)))

    def _linger(self) -> None:
        """Closes its own side, and the other when the client has closed that or some time is over."""
        if self.transport.is_closing():
            return
        self._deaf = True
        self.pipeline.clear()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._stop_timer()
        self._give(self.patience.linger_s)

    # Time

    def _give(self, seconds: float) -> None:
        self._since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._on_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        if self._deaf:
            self.transport.abort()
        elif (left_s := self._left_s()) > 0:
            self._timer = self.loop.call_later(left_s, self._on_time)
        elif not self._begun:
            self._linger()  # without a word, which could be taken for the answer to a request on its way
        else:
            self._refuse(ApiError(408, "the request did not arrive in time", code="request_timeout"))

    def _left_s(self) -> float:
        """Until the client is too slow. It is not while an earlier request is answered, or nobody takes its body."""
        patience, now = self.patience, self.loop.time()
        if not self._in_head and not self._is_busy:
            return 0.0  # it was answered before it had arrived
        if self.flow.read_paused or (self._is_busy and (self._in_head or self.pipeline)):
            self._since = now
        if self._in_head:
            return self._since + patience.head_s - now
        return self._since + patience.body_s + self._body_bytes / patience.bytes_per_s - now


def malformed() -> ApiError:
    return ApiError(400, "this is no HTTP request that can be read", code="invalid_http")


def head_too_large() -> ApiError:
    message = f"the head of the request has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers"
    return ApiError(431, message, code="headers_too_large")


class LastAnswer(asyncio.Transport):
    """What the last answer on a connection is written to: closing it does not take the answer from the client."""

    def __init__(self, protocol: WatchfulProtocol) -> None:
        super().__init__()
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close()
