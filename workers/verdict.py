"""Whether a small model's answer will do. Pure: looks at the request and at what the engine wrote, asks nobody.

Reasons are words that callers see in the job's story: `length`, `empty_answer`, `invalid_json`, `repetition`,
`low_confidence`; what failed without an answer is `engine_error` or `engine_rejected`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
LOOP_CHARS = 240  # of the end of an answer have to be one passage over and over
LOOP_TIMES = 4
MAX_PERIOD = 300
TAIL_CHARS = LOOP_TIMES * MAX_PERIOD


def wants_json(request: Mapping[str, Any]) -> bool:
    """Whether `response_format` asks for JSON."""
    wanted = request.get("response_format")
    return isinstance(wanted, Mapping) and wanted.get("type") in ("json_object", "json_schema")


def flaw(request: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """What is wrong with a whole answer of a chat or a completion; None if nothing is."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        return "empty_answer"
    found = (_choice_flaw(request, choice) for choice in choices if isinstance(choice, Mapping))
    return next((why for why in found if why), None)


def _choice_flaw(request: Mapping[str, Any], choice: Mapping[str, Any]) -> str | None:
    text, calls = text_of(choice)
    if choice.get("finish_reason") == "length":
        if loops(text):
            return "repetition"
        return (
            None if any(request.get(name) for name in LIMITS) else "length"
        )  # a larger model would be cut as well
    if calls:
        return None
    if not text.strip():
        return "empty_answer"
    if wants_json(request) and not is_json(text):
        return "invalid_json"
    return "repetition" if loops(text) else None


def text_of(choice: Mapping[str, Any]) -> tuple[str, bool]:
    """What it says, and whether it calls a tool. `choice`: of a chat or a completion, whole or a chunk of a stream."""
    message = choice.get("message") or choice.get("delta")
    if not isinstance(message, Mapping):
        text = choice.get("text")
        return (text if isinstance(text, str) else ""), False
    content = message.get("content")
    calls = bool(message.get("tool_calls") or message.get("function_call") or message.get("refusal"))
    if isinstance(content, list):
        content = "".join(_part_text(part) for part in content)
    return (content if isinstance(content, str) else ""), calls


def _part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""


def says(chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk's choice has anything that a caller can see: text that is not blank, a tool call, reasoning."""
    delta = chunk.get("delta")
    if not isinstance(delta, Mapping):
        return bool(text_of(chunk)[0].strip())
    return any(
        bool(value.strip()) if isinstance(value, str) else bool(value)
        for name, value in delta.items()
        if name != "role"
    )


def is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def loops(text: str) -> bool:
    """Whether the end of a text is one passage of up to MAX_PERIOD characters, at least LOOP_TIMES in a row.

    A passage of blanks or of one mark (a ruled line, a table) is no loop.
    """
    tail = text[-TAIL_CHARS:]
    for period in range(2, min(MAX_PERIOD, len(tail) // LOOP_TIMES) + 1):
        span = max(LOOP_CHARS, LOOP_TIMES * period)
        if len(tail) < span:
            return False
        if tail[-1] == tail[-1 - period] and tail[-span:-period] == tail[period - span :]:
            return len(set(tail[-period:]) - set(" \n\t")) > 1
    return False


@dataclass(slots=True)
class Confidence:
    """How sure the engine was of its first tokens. Fed with the `logprobs` of choices, as they come."""

    logprobs: list[float] = field(default_factory=list)
    margins: list[float] = field(
        default_factory=list
    )  # in probability, of the first over the second candidate

    def feed(self, choice: Mapping[str, Any]) -> None:
        given = choice.get("logprobs")
        if not isinstance(given, Mapping):
            return
        if isinstance(given.get("content"), list):
            self._feed_chat(given["content"])
        elif isinstance(given.get("token_logprobs"), list):
            self._feed_completion(given)

    def of_first(self, window: int) -> float | None:
        """0 to 1, of the first `window` tokens or as many as there are; None if the engine gives no probabilities.

        The geometric mean of the tokens' probabilities, or, if that is less, half of one plus the mean margin: both are 1
        for an engine that sees no alternative, and a half for one that sees two alike.
        """
        known = self.logprobs[:window]
        if not known:
            return None
        sure = math.exp(math.fsum(known) / len(known))
        margins = self.margins[:window]
        if margins:
            sure = min(sure, (1 + math.fsum(margins) / len(margins)) / 2)
        return sure

    def _feed_chat(self, tokens: Iterable[Any]) -> None:
        for token in tokens:
            if not isinstance(token, Mapping) or not isinstance(token.get("logprob"), int | float):
                continue
            others = token.get("top_logprobs")
            top = [each.get("logprob") for each in others if isinstance(each, Mapping)] if others else []
            self._add(token["logprob"], top)

    def _feed_completion(self, given: Mapping[str, Any]) -> None:
        tops = given.get("top_logprobs") or []
        for at, logprob in enumerate(given["token_logprobs"]):
            if isinstance(logprob, int | float):
                top = tops[at] if at < len(tops) else None
                self._add(logprob, list(top.values()) if isinstance(top, Mapping) else [])

    def _add(self, logprob: float, top: list[Any]) -> None:
        self.logprobs.append(min(float(logprob), 0.0))
        best = sorted((math.exp(min(x, 0.0)) for x in top if isinstance(x, int | float)), reverse=True)
        if len(best) > 1:
            self.margins.append(best[0] - best[1])
