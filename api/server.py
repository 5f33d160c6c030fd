"""uvicorn's server, made to end what is under way in order when the process is asked to stop.

The listener is closed and no new request taken; requests and streams may end within the drain time. Then each that
waits for its job is told so, as an error or the end of its stream, and who does not read, or has not sent its request yet, is cut.
"""

import asyncio
import math
import socket

import uvicorn
from fastapi import FastAPI

from api.connection import WatchfulProtocol
from api.errors import shutting_down
from api.overview import Overviews
from api.services import Services

FAREWELL_S = 2.0  # from the last words to the cancellation of what is still there


class Server(uvicorn.Server):
    """Of `app`, which is also in `config`."""

    def __init__(self, config: uvicorn.Config, *, app: FastAPI, drain_s: float) -> None:
        config.timeout_graceful_shutdown = math.ceil(drain_s + FAREWELL_S)
        super().__init__(config)
        self._app = app
        self._drain_s = drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        overviews: Overviews = self._app.state.overviews
        overviews.close()
        timer = asyncio.get_running_loop().call_later(self._drain_s, self._end_streams)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _end_streams(self) -> None:
        services: Services = self._app.state.services
        services.hub.leave_all(shutting_down())
        for connection in list(self.server_state.connections):
            if isinstance(connection, WatchfulProtocol):
                connection.cut_slow()
