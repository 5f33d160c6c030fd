"""Reads what a user calls a batch file: OpenAI's lines, or plain `{"prompt": …}` and `{"messages": …}` lines, mixed.

A line that is no JSON goes to the server as it is, one without a question under the name `line-N`: the server reports
both in the batch's error file.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import orjson

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SUBJECTS = ("messages", "prompt", "input")
MUTE_SHOWN = 10
OPENAI = frozenset(("body", "url", "method"))  # any of these makes it a line of OpenAI's format


@dataclass(frozen=True, slots=True)
class Wishes:
    """`model`: asked for when a plain line names none. `endpoint` "": as the first OpenAI line says, else chat.

    `parameters`: for plain lines that do not name them themselves.
    """

    model: Callable[[], str]
    endpoint: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    endpoint: str
    lines: int
    mute: list[int]  # numbers of the first lines that ask nothing


def convert(source: Iterable[bytes], target: BinaryIO, *, wishes: Wishes) -> Converted:
    """Writes OpenAI lines to `target`, blank ones too: line numbers stay. Holds one line at a time."""
    endpoint, lines, mute = wishes.endpoint, 0, list[int]()
    for number, raw in enumerate(source, 1):
        line = raw.strip() if number > 1 else raw.removeprefix(b"\xef\xbb\xbf").strip()
        document = _parse(line)
        if document is not None and OPENAI.isdisjoint(document):
            if any(subject in document for subject in SUBJECTS):
                endpoint = endpoint or _natural_endpoint(document)
            elif len(mute) < MUTE_SHOWN:
                mute.append(number)
            line = orjson.dumps(_request(document, endpoint or CHAT, number=number, wishes=wishes))
        elif document is not None:
            endpoint = endpoint or str(document.get("url", ""))
        target.write(line + b"\n")
        lines += bool(line)
    return Converted(endpoint or CHAT, lines, mute)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _natural_endpoint(document: dict[str, Any]) -> str:
    return EMBEDDINGS if "input" in document else CHAT


def _request(document: dict[str, Any], endpoint: str, *, number: int, wishes: Wishes) -> dict[str, Any]:
    """A plain line as OpenAI's; whatever else it holds goes to the engine."""
    body = {**wishes.parameters, **document}
    body.pop("custom_id", None)
    if "model" not in body:
        body["model"] = wishes.model()
    if endpoint == CHAT and "prompt" in body:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    elif endpoint == EMBEDDINGS and "prompt" in body:
        body["input"] = body.pop("prompt")
    custom_id = document.get("custom_id", f"line-{number}")
    return {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
