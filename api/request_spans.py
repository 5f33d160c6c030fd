"""A span for each HTTP request: FastAPI makes it, and what is queued meanwhile is part of it."""

from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from broker.tracing import PARENT, STATE, headers_of

if TYPE_CHECKING:
    from broker.spans import Spans

UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds by machines


def fastapi_options(spans: "Spans | None") -> dict[str, Any]:
    """For `FastAPI(…)`: its span of the request, and nothing else of its telemetry."""
    if spans is None:
        return {}
    only_spans = {"metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}
    exclude = {"exclude": lambda scope: scope["path"] in UNTRACED}
    return {"telemetry": {"tracer_provider": spans.provider, **only_spans, **exclude}}


class InSpan:
    """Inside that span: puts it where `tracing.carried` looks for what a request is part of."""

    def __init__(self, app: ASGIApp, spans: "Spans") -> None:
        self.app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (trace := self._spans.current()):
            kept = [header for header in scope["headers"] if header[0] not in (PARENT, STATE)]
            own = [(name.encode(), value.encode()) for name, value in headers_of(trace).items()]
            scope["headers"] = kept + own
        await self.app(scope, receive, send)
