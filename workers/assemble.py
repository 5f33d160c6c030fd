"""Puts the chunks of a streamed answer together to the whole answer that the same request would have got unstreamed.

Pure. Used for jobs that are polled: their watchers see tokens as they come, their result is one document.
Source: the chunk and completion objects of OpenAI's API reference (chat.completion.chunk, text_completion).
"""

from collections.abc import Mapping
from typing import Any

import orjson

from workers.engine import EngineBroken, Usage

WHOLE = {"chat.completion.chunk": "chat.completion"}
MOST_CALLS = 1000  # of tools, by one message


class Assembler:
    """Feed payloads in order; `whole` is then the document. Unknown fields are kept: the last value wins."""

    def __init__(self) -> None:
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def feed(self, payloads: bytes) -> None:
        """`payloads`: JSON objects joined by newlines. Raises EngineBroken."""
        for payload in payloads.split(b"\n"):
            chunk = orjson.loads(payload)
            choices = chunk.pop("choices", None) or []
            self._top |= {name: value for name, value in chunk.items() if value is not None}
            for choice in choices:
                self._add(choice)

    def whole(self, usage: Usage | None) -> bytes:
        """The completion object as JSON, with the engine's `usage` where the chunks had none."""
        if usage is not None:
            self._top.setdefault("usage", _usage(usage))
        kind = self._top.get("object", "chat.completion.chunk")
        choices = [self._choices[index] for index in sorted(self._choices)]
        return orjson.dumps(self._top | {"object": WHOLE.get(kind, kind), "choices": choices})

    def _add(self, chunk: Mapping[str, Any]) -> None:
        index = chunk.get("index", 0)
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        for name, value in chunk.items():
            if name == "delta":
                _merge_message(
                    choice.setdefault("message", {"role": "assistant", "content": None}), value or {}
                )
            elif name == "text":
                choice["text"] = choice.get("text", "") + value
            elif name == "logprobs" and value is not None:
                choice["logprobs"] = _merge_logprobs(choice.get("logprobs"), value)
            elif value is not None:
                choice[name] = value


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _merge_message(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            _merge_calls(message.setdefault("tool_calls", []), value or [])
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None:
            message[name] = value


def _merge_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    """Tool calls come in pieces too: name and id first, then the arguments' text."""
    for delta in deltas:
        place = delta.get("index", len(calls))
        if type(place) is not int or not 0 <= place < MOST_CALLS:
            raise EngineBroken("the engine numbers its tool calls as nobody can")
        while len(calls) <= place:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[place]
        call |= {name: delta[name] for name in ("id", "type") if delta.get(name)}
        function = delta.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _merge_logprobs(known: Any, new: Any) -> Any:
    """Chat: lists by name; completions: parallel lists. Both grow by concatenation."""
    if not isinstance(known, dict) or not isinstance(new, dict):
        return new
    merged = dict(known)
    for name, value in new.items():
        old = merged.get(name)
        merged[name] = old + value if isinstance(old, list) and isinstance(value, list) else value
    return merged
