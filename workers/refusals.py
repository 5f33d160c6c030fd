"""Errors as jobs keep them: OpenAI's error object, whatever shape the engine's own words had. Pure."""

from typing import Any

import orjson

from workers.engine import EngineRejected


def error_document(
    message: str, *, code: str, kind: str = "server_error", status: int | None = None
) -> bytes:
    """OpenAI's error object as jobs store it; `status`: the engine's HTTP status, if it gave one."""
    document: dict[str, Any] = {"message": message, "type": kind, "code": code, "param": None}
    return orjson.dumps(document if status is None else document | {"status": status})


def rejection(error: EngineRejected) -> bytes:
    """The engine's own words about a bad request, in OpenAI's shape whatever shape they had."""
    try:
        body = orjson.loads(error.body)
    except orjson.JSONDecodeError:
        body = None
    said = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(said, dict):
        said = {"message": said if isinstance(said, str) else error.body[:500].decode(errors="replace")}
    document = {
        "message": str(said.get("message") or f"the engine refused the request with status {error.status}"),
        "type": _kind(said.get("type")),
        "code": said.get("code") if isinstance(said.get("code"), str) else "engine_rejected",
        "param": said.get("param"),
        "status": error.status,
    }
    return orjson.dumps(document)


def _kind(said: object) -> str:
    """An engine that blames itself for a bad request is not repeated."""
    return said if isinstance(said, str) and said and said != "server_error" else "invalid_request_error"
