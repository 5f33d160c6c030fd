"""W3C trace context: what a request is part of goes with its job to the engine, whether or not Headway traces itself.

In the job's record, and in a lease, it is one text: the `traceparent` header, and after a space `tracestate` if that was
given. Headway's own spans (OpenTelemetry) are in `spans.py`, which is imported only where they are asked for.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.errors import ConfigError
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.spans import Spans

PARENT, STATE = b"traceparent", b"tracestate"
# Version, trace id, span id, flags. Version ff and ids of zeros are invalid
VALID = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
STATE_TEXT = re.compile(rb"[\x20-\x7e\t]{1,512}")  # as much has to be carried; a longer one is dropped


def carried(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Of a request's headers; empty if it is part of nothing, or says so wrongly."""
    parent, states = b"", list[bytes]()
    for name, value in headers:
        if name == PARENT:
            parent = value
        elif name == STATE:
            states.append(value)
    if not parent or not VALID.fullmatch(parent):
        return ""
    state = b",".join(states)
    return (parent + b" " + state if STATE_TEXT.fullmatch(state) else parent).decode("ascii")


def headers_of(trace: str) -> dict[str, str]:
    """For a request that is part of it."""
    if not trace:
        return {}
    parent, _, state = trace.partition(" ")
    return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}


def open_spans(settings: Settings, service: str, *, instance: str) -> "Spans | None":
    """For a program that traces itself with OpenTelemetry; None where nobody asked for that: then its SDK is not even imported.

    `service`, `instance`: which program, and which of its processes. Raises ConfigError if it is not installed.
    """
    if not settings.otlp_endpoint:
        return None
    try:
        from broker.spans import open_spans as open_  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise ConfigError(
            f"traces are to go to {settings.otlp_endpoint}, but {error.name} is not installed: run "
            "`pip install 'headway[otel]'`, or unset HEADWAY_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from None
    return open_(settings.otlp_endpoint, service, instance=instance)
