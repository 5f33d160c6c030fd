"""Reads a request's body and makes a JSON object of it. What is in it: `broker/request_checks.py`.

Called by `submit.py`, `jobs.py` and the batches' routes.
"""

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import Receive

from api.errors import ClientGone, invalid

MAX_DEPTH = 100  # a tool's JSON schema nests some 20 deep
MAX_CONTAINERS = 50_000  # objects and arrays: a long conversation with many tools has some 5,000
MAX_VALUES = 1_000_000  # a prompt may be a list of token numbers


async def read(receive: Receive) -> bytes:
    """The whole body; the gate has limited its size. Raises ClientGone."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return bytes(message.get("body", b""))
    parts: list[bytes] = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise ClientGone("the client left while it sent its request")


def parse(raw: bytes) -> dict[str, Any]:
    """A JSON object. Raises ApiError for malformed JSON, NaN, text that is not UTF-8, too deep nesting, too many values."""
    if _is_crowded(raw) and _is_crowded(_without_strings(raw)):
        message = (
            f"the request body has more than {MAX_CONTAINERS} objects and arrays, or {MAX_VALUES} values"
        )
        raise invalid(message, code="invalid_json")
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise invalid("the request body must be a JSON object", code="invalid_json")
    # a document with few brackets cannot be deep: spares the walk for nearly all requests
    if _brackets(raw) > MAX_DEPTH and _deeper_than(document, MAX_DEPTH):
        raise invalid(f"the request body nests deeper than {MAX_DEPTH} levels", code="invalid_json")
    return document


def _is_crowded(raw: bytes) -> bool:
    """Told before it is parsed: 16 MiB of empty lists would become 400 MiB, and nobody be served for seconds."""
    return _brackets(raw) > MAX_CONTAINERS or raw.count(b",") > MAX_VALUES


def _without_strings(raw: bytes) -> bytes:
    text = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > 4 * MAX_VALUES:
        return raw  # crowded by these
    return b"".join(text.split(b'"')[::2])


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _deeper_than(document: dict[str, Any], limit: int) -> bool:
    level: list[Any] = [document]
    for _ in range(limit):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return False
    return True


def _containers(outer: Any) -> Iterable[Any]:
    values = outer.values() if isinstance(outer, dict) else outer
    return [value for value in values if isinstance(value, dict | list)]
