"""Reads what a user calls a batch file: OpenAI's lines, or plain `{"prompt": …}` and `{"messages": …}` lines, mixed.

A line that is neither goes to the server as it is, which reports it in the batch's error file.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SUBJECTS = ("messages", "prompt", "input")


@dataclass(frozen=True, slots=True)
class Wishes:
    """`model`: asked for when a plain line names none. `endpoint` "": as the first OpenAI line says, else chat."""

    model: Callable[[], str]
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    endpoint: str
    lines: int


def convert(source: Iterable[bytes], target: BinaryIO, *, wishes: Wishes) -> Converted:
    """Writes OpenAI lines to `target`, blank lines left out. Holds one line at a time."""
    endpoint, lines = wishes.endpoint, 0
    for number, raw in enumerate(source, 1):
        line = raw.strip() if number > 1 else raw.removeprefix(b"\xef\xbb\xbf").strip()
        if not line:
            continue
        document = _parse(line)
        if document is not None and "body" in document:
            endpoint = endpoint or str(document.get("url", ""))
        elif document is not None and any(subject in document for subject in SUBJECTS):
            endpoint = endpoint or _natural_endpoint(document)
            line = orjson.dumps(_request(document, endpoint, number=number, model=wishes.model))
        target.write(line + b"\n")
        lines += 1
    return Converted(endpoint or CHAT, lines)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _natural_endpoint(document: dict[str, Any]) -> str:
    return EMBEDDINGS if "input" in document else CHAT


def _request(
    document: dict[str, Any], endpoint: str, *, number: int, model: Callable[[], str]
) -> dict[str, Any]:
    """A plain line as OpenAI's; whatever else it holds goes to the engine."""
    body = {name: value for name, value in document.items() if name != "custom_id"}
    if "model" not in body:
        body["model"] = model()
    if endpoint == CHAT and "prompt" in body:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    elif endpoint == EMBEDDINGS and "prompt" in body:
        body["input"] = body.pop("prompt")
    custom_id = document.get("custom_id", f"line-{number}")
    return {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
