"""Which error an engine's refusal is: whose fault, and whether another attempt may do better."""

from collections.abc import Mapping
from typing import Any

import orjson

from broker.errors import EngineError
from workers.engine import EngineBroken, EngineBusy, EngineFailed, EngineRejected, EngineUnavailable

MAX_RETRY_AFTER_S = 300.0
DEFAULT_RETRY_AFTER_S = 1.0


def answer_fault(status: int, headers: Mapping[str, str], *, body: bytes) -> EngineError:
    """For an answer other than 200. `body` goes to the caller only where the caller is at fault."""
    if status in (429, 503):
        return EngineBusy(f"the engine has no room (status {status})", retry_after_s=_retry_after_s(headers))
    if status in (401, 403):
        return EngineUnavailable(
            f"the engine refuses the worker's key (status {status}); set the model's api_key"
        )
    if 400 <= status < 500 or status == 501:
        return EngineRejected(status, body)
    if status in (502, 504):  # a proxy's word that it did not reach the engine
        return EngineUnavailable(f"there is a gateway, but no engine behind it (status {status})")
    return EngineFailed(f"the engine failed with status {status}")


def event_fault(event: dict[str, Any], payload: bytes) -> EngineError | None:
    """For an event inside a stream, whose status was 200. None: it reports no error."""
    error = event if event.get("object") == "error" else event.get("error")
    if not error:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500 and code != 429:
        return EngineRejected(code, payload if error is not event else orjson.dumps({"error": event}))
    return EngineBroken("the engine reported an error in the middle of its answer")


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Only the form in whole seconds; engines do not send dates."""
    value = headers.get("Retry-After", "").strip()
    return min(float(value), MAX_RETRY_AFTER_S) if value.isdecimal() else DEFAULT_RETRY_AFTER_S
