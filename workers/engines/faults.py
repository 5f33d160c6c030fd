"""Which error an engine's refusal is: whose fault, and whether another attempt may do better."""

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from broker.errors import EngineError
from workers.engine import EngineBroken, EngineBusy, EngineFailed, EngineRejected, EngineUnavailable
from workers.engines.dialects import Dialect

MAX_RETRY_AFTER_S = 300.0
DEFAULT_RETRY_AFTER_S = 1.0
BUSY = (429, 503)
# TGI begins its stream before it looks at the request, and blames the request (422) for whatever then goes wrong: only
# its words tell (router/src/infer/mod.rs).
TGI_OVERLOADED = "Model is overloaded"
TGI_REQUEST = ("Input validation error", "Template error", "Missing template", "Tool error")


def answer_fault(status: int, headers: Mapping[str, str], *, body: bytes, dialect: Dialect) -> EngineError:
    """For an answer other than 200. `body` goes to the caller only where the caller is at fault."""
    named = _named_fault(status, body, dialect=dialect)
    if named is not None:
        return named
    if status in BUSY:
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


def _named_fault(status: int, body: bytes, *, dialect: Dialect) -> EngineError | None:
    """What the dialect knows better than the status says."""
    if status in BUSY and any(words in body for words, _ in dialect.refusals):
        return EngineRejected(status, body)
    if status >= 500 and any(words in body for words in dialect.blames_itself_for):
        return EngineRejected(400, body)
    return EngineFailed(f"the engine failed with status {status}") if status in dialect.own_faults else None


def event_fault(event: dict[str, Any], payload: bytes) -> EngineError | None:
    """For an event inside a stream, whose status was 200. None: it reports no error."""
    error = event if event.get("object") == "error" else event.get("error")
    if not error:
        return None
    code = _code(error) if isinstance(error, dict) else None
    if code in BUSY:
        return EngineBusy(f"the engine has no room (code {code})")
    if isinstance(code, int) and 400 <= code < 500:
        return EngineRejected(code, payload if error is not event else orjson.dumps({"error": event}))
    return EngineBroken("the engine reported an error in the middle of its answer")


def _code(error: Mapping[str, Any]) -> object:
    if "http_status_code" not in error:
        return error.get("code")
    message = str(error.get("message"))
    if message.startswith(TGI_OVERLOADED):
        return 429
    return error["http_status_code"] if message.startswith(TGI_REQUEST) else 500


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds, or the date that gateways write. Source: RFC 9110, section 10.2.3."""
    value = headers.get("Retry-After", "").strip()
    try:
        wanted_s = (
            float(value) if value[:1].isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
        )
    except ValueError:
        return DEFAULT_RETRY_AFTER_S
    return min(max(wanted_s, 0.0), MAX_RETRY_AFTER_S)
