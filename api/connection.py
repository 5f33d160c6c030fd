"""uvicorn's HTTP connection, made to notice that a client has left also while it has pipelined further requests.

uvicorn stops reading then, so that the end of the connection is not seen and the first request runs for nobody.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_PIPELINED = 16  # more are no client's habit, and each costs memory


class WatchfulProtocol(HttpToolsProtocol):
    """Reads on while a request is answered; a lost connection ends every request on it."""

    _answering: RequestResponseCycle | None = None

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if not self.pipeline:
            return
        if self._answering is None or self._answering.response_complete:
            self._answering = before
        if len(self.pipeline) > MAX_PIPELINED:
            self.transport.close()
        else:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
