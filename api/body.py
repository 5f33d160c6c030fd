"""Reads and checks what Headway itself has to understand of a request body; everything else is the engine's business.

Pure but for `read`. Called by `submit.py` for every way in: OpenAI routes, jobs and lines of a batch.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import orjson
from starlette.types import Receive

from api.errors import ClientGone, invalid

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SUBJECTS = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
MAX_DEPTH = 100  # a tool's JSON schema nests some 20 deep
MAX_TOKENS = 1_000_000
MAX_CHOICES = 128


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
    """A JSON object. Raises ApiError for malformed JSON, NaN, text that is not UTF-8, and too deep nesting."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise invalid("the request body must be a JSON object", code="invalid_json")
    # a document with few brackets cannot be deep: spares the walk for nearly all requests
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper_than(document, MAX_DEPTH):
        raise invalid(f"the request body nests deeper than {MAX_DEPTH} levels", code="invalid_json")
    return document


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


def check(document: dict[str, Any], endpoint: str) -> None:
    """Raises ApiError naming the field that is missing or of a wrong type. Null stands for absent, as in OpenAI's API."""
    subject = SUBJECTS[endpoint]
    if document.get(subject) is None:
        raise invalid(f"{subject} is required", param=subject, code="missing_required_parameter")
    for name, value in document.items():
        if value is not None and (rule := RULES.get(name)) is not None:
            rule(name, value)


def wrong(name: str, value: Any, *, wanted: str) -> Exception:
    shown = f"{type(value).__name__} of {len(value)}" if isinstance(value, str | list | dict) else repr(value)
    return invalid(f"{name} must be {wanted}, not {shown}", param=name, code="invalid_type")


def _integer(low: int, high: int) -> Callable[[str, Any], None]:
    def rule(name: str, value: Any) -> None:
        if type(value) is not int:
            raise wrong(name, value, wanted="an integer")
        if not low <= value <= high:
            raise invalid(f"{name} must be between {low} and {high}, not {value}", param=name)

    return rule


def _number(name: str, value: Any) -> None:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise wrong(name, value, wanted="a number")


def _kind(wanted: str, *kinds: type) -> Callable[[str, Any], None]:
    def rule(name: str, value: Any) -> None:
        if type(value) not in kinds:
            raise wrong(name, value, wanted=wanted)

    return rule


def _messages(name: str, value: Any) -> None:
    if type(value) is not list or not value:
        raise wrong(name, value, wanted="a list of at least one message")
    for place, message in enumerate(value):
        if type(message) is not dict:
            raise wrong(f"{name}[{place}]", message, wanted="an object with role and content")


def _text(name: str, value: Any) -> None:
    """A prompt or an input: text, texts, token ids, lists of token ids."""
    if type(value) is str:
        if value == "" and name == "input":
            raise invalid("input must not be empty", param=name)
    elif type(value) is not list or not value:
        raise wrong(name, value, wanted="a string, or a list of strings or token ids")
    elif not all(type(item) in (str, int, list) for item in value):
        raise invalid(f"{name} must hold strings or token ids only", param=name, code="invalid_type")


RULES: dict[str, Callable[[str, Any], None]] = {
    "messages": _messages,
    "prompt": _text,
    "input": _text,
    "stream": _kind("true or false", bool),
    "max_tokens": _integer(1, MAX_TOKENS),
    "max_completion_tokens": _integer(1, MAX_TOKENS),
    "n": _integer(1, MAX_CHOICES),
    "best_of": _integer(1, MAX_CHOICES),
    "seed": _kind("an integer", int),
    "temperature": _number,
    "top_p": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "stop": _kind("a string or a list of strings", str, list),
    "tools": _kind("a list", list),
    "response_format": _kind("an object", dict),
    "stream_options": _kind("an object", dict),
    "logit_bias": _kind("an object", dict),
    "logprobs": _kind("true, false or an integer", bool, int),
    "top_logprobs": _kind("an integer", int),
    "user": _kind("a string", str),
}
