"""Counts answers and refusals, outside everything else. Plain ASGI."""

from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import REFUSAL, ApiError
from api.metrics import catalogue as c
from api.metrics.tally import Tally
from broker import request_checks
from broker.job import ServiceClass

UNCOUNTED = frozenset({"/", "/healthz", "/readyz", "/metrics", "/favicon.ico"})
REFUSED = (429, 503)
PLACE = "headway.place"  # in the scope of a request that was understood: its pool and class


def note_place(scope: MutableMapping[str, Any], pool: str, *, service_class: ServiceClass) -> None:
    """By which a refusal is counted."""
    scope[PLACE] = pool, service_class.name


class Counting:
    """Of the application's `services.tally`, as long as that is open."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            await self.app(scope, receive, send)
            return
        tally: Tally = scope["app"].state.services.tally
        status = 499  # the client left before there was an answer

        async def seeing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        tally.open_requests += 1
        try:
            await self.app(scope, receive, seeing)
        finally:
            tally.open_requests -= 1
            tally.count(c.HTTP_REQUESTS, _path(scope), str(status))
            refusal: ApiError | None = scope.get(REFUSAL)
            if refusal is not None and status in REFUSED:
                tally.count(c.REFUSALS, *scope.get(PLACE, ("", "")), refusal.code or "")


def _path(scope: Scope) -> str:
    """As it is declared, with its parameters' names."""
    if scope["path"] in request_checks.SUBJECTS:
        return str(scope["path"])
    return str(getattr(scope.get("route"), "path", c.OTHER))
