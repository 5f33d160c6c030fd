"""How long a client may take, and the end of a connection whose answers nobody reads.

uvicorn waits for ever for a client that does not read. What is kept for it meanwhile is bounded: the transport's 64 KiB and
one message, and the job's mailbox (`broker/stream.py`).
"""

import asyncio
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True, slots=True)
class Patience:
    """With a client, seconds. Bodies and readers have longer by what they have sent or taken, at `bytes_per_s`."""

    head_s: float = 10.0  # from a connection's or head's first byte to the head's end
    body_s: float = 20.0
    read_s: float = 30.0  # for an answer that no more can be written of
    bytes_per_s: float = 1024.0
    linger_s: float = 2.0  # reads on after a refusal, which a close with bytes unread would take away


class ReaderLimit(HttpToolsProtocol):
    """Aborts when a client has not taken what was written for it; its requests end as if it had hung up."""

    patience = Patience()

    _unread = 0  # bytes, when the timer was set
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_reader_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reader_timer()

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(self.patience.read_s, self._on_reader_time)

    def _on_reader_time(self) -> None:
        taken = self._unread - self.transport.get_write_buffer_size()
        if taken < self.patience.bytes_per_s * self.patience.read_s:
            self.transport.abort()
        else:
            self._watch_reader()

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
