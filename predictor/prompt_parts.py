"""A request taken apart: what the system says, what the user asks last, how long earlier answers were. Pure.

Takes any endpoint's body and any shape of content; what it does not know counts as text, and nothing raises.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

MAX_MESSAGES = 512  # of a longer conversation the last ones are read; their sizes stand for the others
MAX_PARTS = 64


@dataclass(slots=True)
class Parts:
    """Sizes are characters."""

    system: str = ""
    user: str = ""  # the last message that is not the assistant's
    texts: list[str] = field(default_factory=list)  # all of it, tools left out
    answers: list[int] = field(default_factory=list)  # sizes of the assistant's earlier messages
    messages: int = 0
    images: int = 0
    token_ids: int = 0  # of prompts that came as tokens
    last_role: str = "user"
    calls: int = 0  # earlier messages that called tools


def read(document: Mapping[str, Any]) -> Parts:
    """`document`: a request in OpenAI's shape."""
    parts = Parts()
    messages = document.get("messages")
    if isinstance(messages, list):
        parts.messages = len(messages)
        for message in messages[-MAX_MESSAGES:]:
            _read_message(parts, message)
        if len(messages) > MAX_MESSAGES:
            _read_message(parts, messages[0])
        return parts
    parts.messages = 1
    parts.user = _text(parts, document.get("prompt", document.get("input")))
    parts.texts.append(parts.user)
    return parts


def _read_message(parts: Parts, message: object) -> None:
    if not isinstance(message, dict):
        return
    content = message.get("content")
    text = content if isinstance(content, str) else _text(parts, content)
    parts.texts.append(text)
    role = message.get("role")
    if role == "assistant":
        parts.answers.append(len(text))
        if calls := message.get("tool_calls"):
            parts.calls += 1
            parts.texts.append(_dump(calls))
    elif role in ("system", "developer"):
        parts.system = parts.system or text
    else:
        parts.user = text
    parts.last_role = role if isinstance(role, str) else "user"


def _text(parts: Parts, content: object) -> str:
    """Text of a content that is no string; images and token ids are counted on the way."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return "" if content is None else _dump(content)
    if isinstance(content[0], int):
        parts.token_ids += len(content)
        return ""
    return "\n".join([_part(parts, part) for part in content[:MAX_PARTS]])


def _part(parts: Parts, part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        parts.token_ids += len(part)
        return ""
    if not isinstance(part, dict):
        return ""
    text = part.get("text")
    if isinstance(text, str):
        return text
    parts.images += 1
    return ""


def _dump(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return ""
