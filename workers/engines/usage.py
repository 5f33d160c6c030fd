"""Token counts that cannot be are counted again. Pure; nothing here runs once a token.

An engine may send no usage at all (killed proxies, old versions), zeros, negative numbers, or more than was allowed.
Limits, fair shares and predictions feed on these counts, so a wrong one is replaced by an estimate and marked.
"""

from collections.abc import Mapping
from typing import Any

from broker.request_checks import choices
from predictor.estimator import prompt_tokens, text_tokens
from workers.engine import EMBEDDINGS, EngineCall, Usage

MOST_TOKENS = 10**8  # of one request: beyond any context window, with every choice of every prompt
FRAME_CHUNKS = 2  # of a stream, without text: the one with the role and the one with the finish reason


def checked(usage: Usage | None, call: EngineCall, *, written: int) -> Usage:
    """`written`: tokens of the answer as Headway sees them: an estimate, 0 where there is no text for sure."""
    given = usage or Usage(0, 0, 0)
    prompt = given.prompt_tokens if 0 < given.prompt_tokens <= MOST_TOKENS else prompt_tokens(call.body)
    completion = given.completion_tokens
    most = _most(call.body)
    if call.endpoint == EMBEDDINGS:
        completion, most = completion if 0 <= completion <= MOST_TOKENS else 0, None
    elif usage is None or not 0 <= completion <= MOST_TOKENS or (completion == 0 and written > 0):
        completion = written
    if most is not None and completion > most:
        completion = max(1, min(written, most))
    cached = min(max(0, given.cached_tokens), prompt)
    right = (prompt, completion, cached)
    same = usage is not None and right == (given.prompt_tokens, given.completion_tokens, given.cached_tokens)
    return Usage(*right, recounted=not same)


def tokens_of_stream(payloads: int) -> int:
    """About one payload a token; engines under load put several tokens into one."""
    return max(0, payloads - FRAME_CHUNKS)


def tokens_of_answer(answer: Mapping[str, Any]) -> int:
    """From the texts of a whole answer, at least 1 for each that is not empty."""
    choices = answer.get("choices")
    total = 0
    for choice in choices if isinstance(choices, list) else ():
        texts = _texts(choice) if isinstance(choice, dict) else []
        total += sum(max(1, round(text_tokens(text))) for text in texts if isinstance(text, str) and text)
    return total


def _texts(choice: Mapping[str, Any]) -> list[Any]:
    message = choice.get("message")
    if not isinstance(message, dict):
        return [choice.get("text")]
    calls = message.get("tool_calls")
    functions = (
        [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    return [
        *(message.get(name) for name in ("content", "reasoning_content", "reasoning")),
        *(function.get(name) for function in functions if function for name in ("name", "arguments")),
    ]


def _most(body: Mapping[str, Any]) -> int | None:
    """Over all choices of all prompts; None: no limit was named."""
    limits = (body.get("max_completion_tokens"), body.get("max_tokens"))
    limit = next((limit for limit in limits if type(limit) is int and limit > 0), None)
    if limit is None:
        return None
    return limit * choices(body)
