"""One HTTP request to an engine and its time limits. Used by `openai_http`; knows HTTP, not what is in the answer.

Invariant: an exchange that ends early, for whatever reason, closes its connection, which is how every server learns
that nobody wants the answer. One that ends well gives its connection back to the pool.
"""

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

import aiohttp

from broker.errors import EngineError
from workers.engine import EngineAborted, EngineBroken, EngineTimeout, EngineUnavailable
from workers.engines.dialects import Dialect
from workers.engines.faults import answer_fault

MAX_FAULT_BYTES = 1 << 20
TAIL_WAIT_S = 0.05
LINGER_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Time limits by phase. `first_byte_s` and `between_bytes_s` bind streams (prefill, one step); `answer_s` all others.

    They tell a dead engine from a slow one. How long a job may take at all is its deadline, which the queue enforces.
    """

    api_key: str | None = field(default=None, repr=False)
    connect_s: float = 5.0
    first_byte_s: float = 300.0
    between_bytes_s: float = 120.0
    answer_s: float = 600.0
    max_answer_bytes: int = 64 << 20


@dataclass(slots=True)
class Sent:
    """What is known of a request on its way."""

    on_kept_connection: bool = False


def tracing() -> aiohttp.TraceConfig:
    """For the session: it alone can tell which connection a request went out on."""

    async def note(_: aiohttp.ClientSession, context: Any, *__: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.on_kept_connection = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
    return config


class Exchange:
    """`open`, then `read` until it returns nothing, then `close`; `abort` from anywhere."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        options: HttpOptions,
        *,
        dialect: Dialect,
        stream: bool,
    ) -> None:
        self._session = session
        self._options = options
        self._loop = asyncio.get_running_loop()
        limit_s = options.first_byte_s if stream else options.answer_s
        self._late = f"the engine sent nothing for {limit_s:g} s" if stream else f"no answer in {limit_s:g} s"
        self._deadline = self._loop.time() + limit_s
        self._stream = stream
        self._dialect = dialect
        self._size = 0
        self._aborted = False
        self._stalled = False
        self._phase: asyncio.Timeout | None = None
        self._response: aiohttp.ClientResponse | None = None
        self._reading_since: float | None = None
        self._watchdog: asyncio.TimerHandle | None = None

    async def open(self, url: str, body: bytes, *, headers: dict[str, str]) -> None:
        """`headers`: beside the session's. Raises EngineUnavailable, EngineBusy, EngineRejected, EngineTimeout or EngineAborted."""
        try:
            async with asyncio.timeout_at(self._deadline) as self._phase:
                self._response = await self._post(url, body, headers=headers)
                if self._response.status != 200:
                    raise await self._fault(self._response)
        except aiohttp.ServerTimeoutError as error:
            raise EngineTimeout(f"no connection in {self._options.connect_s:g} s") from error
        except TimeoutError as error:
            self._raise_ended(error, EngineTimeout(self._late))
        except (aiohttp.ClientError, OSError) as error:
            self._raise_ended(error, EngineUnavailable(f"no answer from the engine: {type(error).__name__}"))
        finally:
            self._phase = None
        if (
            self._aborted
        ):  # as the answer came: it was too late to end the phase, and there was no response to close yet
            self._close_connection()

    async def read(self) -> bytes:
        """All bytes that are there, at least one; none at the end. Raises EngineBroken, -Timeout or -Aborted."""
        if self._response is None or self._aborted:
            raise EngineAborted("the job was called off")
        try:
            if self._size and self._stream:
                chunk = await self._read_watched(self._response)
            else:
                async with asyncio.timeout_at(self._deadline) as self._phase:
                    chunk = await self._response.content.readany()
        except TimeoutError as error:
            self._raise_ended(error, EngineTimeout(self._late))
        except (aiohttp.ClientError, OSError) as error:
            self._raise_ended(error, EngineBroken(f"the engine's answer broke off: {type(error).__name__}"))
        finally:
            self._phase = None
        self._size += len(chunk)
        if self._size > self._options.max_answer_bytes:
            raise EngineBroken(f"the engine's answer exceeds {self._options.max_answer_bytes} bytes")
        return chunk

    async def drain(self) -> None:
        """Waits a moment for the end of the body after the last event, so that the connection can be used again."""
        if self._response is None:
            return
        try:
            async with asyncio.timeout(TAIL_WAIT_S):
                while await self._response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            return

    def abort(self) -> None:
        """What waits on this exchange raises EngineAborted."""
        self._aborted = True
        if self._phase is not None and not self._phase.expired():
            self._phase.reschedule(self._loop.time())
        self._close_connection()

    def close(self) -> None:
        """A body that was read to its end has given the connection back before; any other closes it."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._close_connection()
        self._response = None

    async def _post(self, url: str, body: bytes, *, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Again for as long as a kept connection turns out to be closed: the server may have dropped some, even as we wrote.

        Never after a fresh one: a request that kills its engine must not be sent again by anybody but the queue.
        """
        while True:
            sent = Sent()
            try:
                return await self._session.post(
                    url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=sent
                )
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not sent.on_kept_connection:
                    raise

    async def _fault(self, response: aiohttp.ClientResponse) -> EngineError:
        body = b""
        while len(body) < MAX_FAULT_BYTES and (chunk := await response.content.readany()):
            body += chunk
        return answer_fault(response.status, response.headers, body=body, dialect=self._dialect)

    async def _read_watched(self, response: aiohttp.ClientResponse) -> bytes:
        """One timer for the whole stream, not one a read: asyncio.timeout costs 3 µs, a token much less."""
        if self._watchdog is None:
            self._watch()
        self._reading_since = self._loop.time()
        chunk = await response.content.readany()
        self._reading_since = None
        return chunk

    def _watch(self) -> None:
        now = self._loop.time()
        since = now if self._reading_since is None else self._reading_since
        left_s = since + self._options.between_bytes_s - now
        if left_s > 0:
            self._watchdog = self._loop.call_later(left_s, self._watch)
            return
        self._stalled = True
        self._close_connection()

    def _close_connection(self) -> None:
        """With a reset rather than an orderly end: then the server's next write fails, not the one after it."""
        connection = None if self._response is None else self._response.connection
        if connection is not None and connection.transport is not None:
            raw = connection.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        if self._response is not None:
            self._response.close()

    def _raise_ended(self, cause: Exception, otherwise: Exception) -> NoReturn:
        if self._aborted:
            raise EngineAborted("the job was called off") from cause
        if self._stalled:
            late = (
                f"the engine fell silent for {self._options.between_bytes_s:g} s in the middle of its answer"
            )
            raise EngineTimeout(late) from cause
        raise otherwise from cause
