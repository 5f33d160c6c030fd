"""What Headway itself has to understand of a request body; everything else is the engine's business. Pure.

Called for every way in: by the API for OpenAI's routes and jobs, by the Celery tasks for the lines of a batch.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from broker.errors import InvalidJob

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SUBJECTS = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
MAX_TOKENS = 1_000_000
MAX_CHOICES = 128


def model_name(document: Mapping[str, Any]) -> str:
    """Raises InvalidJob."""
    model = document.get("model")
    if model is None:
        raise InvalidJob("model is required", param="model", code="missing_required_parameter")
    if type(model) is not str:
        raise wrong("model", model, wanted="a string")
    if not model:
        raise InvalidJob("model must not be empty", param="model")
    return model


def check(document: Mapping[str, Any], endpoint: str) -> None:
    """Raises InvalidJob naming the field that is missing or of a wrong type. Null stands for absent, as in OpenAI's API."""
    subject = SUBJECTS[endpoint]
    if document.get(subject) is None:
        raise InvalidJob(f"{subject} is required", param=subject, code="missing_required_parameter")
    for name, value in document.items():
        if value is not None and (rule := RULES.get(name)) is not None:
            rule(name, value)


def wrong(name: str, value: Any, *, wanted: str) -> InvalidJob:
    shown = f"{type(value).__name__} of {len(value)}" if isinstance(value, str | list | dict) else repr(value)
    return InvalidJob(f"{name} must be {wanted}, not {shown}", param=name, code="invalid_type")


def _integer(low: int, high: int) -> Callable[[str, Any], None]:
    def rule(name: str, value: Any) -> None:
        if type(value) is not int:
            raise wrong(name, value, wanted="an integer")
        if not low <= value <= high:
            raise InvalidJob(f"{name} must be between {low} and {high}, not {value}", param=name)

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
            raise InvalidJob("input must not be empty", param=name)
    elif type(value) is not list or not value:
        raise wrong(name, value, wanted="a string, or a list of strings or token ids")
    elif not all(type(item) in (str, int, list) for item in value):
        raise InvalidJob(f"{name} must hold strings or token ids only", param=name, code="invalid_type")


RULES: dict[str, Callable[[str, Any], None]] = {
    "messages": _messages,
    "prompt": _text,
    "input": _text,
    "stream": _kind("true or false", bool),
    "max_tokens": _integer(1, MAX_TOKENS),
    "n_predict": _integer(1, MAX_TOKENS),  # llama.cpp's own name for it, where a negative one means for ever
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


def choices(document: Mapping[str, Any]) -> int:
    """How many answers the engine works on at once: `n` or `best_of` of each prompt. 1 where `check` would refuse it."""
    asked = (document.get(name) for name in ("n", "best_of"))
    each = max((n for n in asked if type(n) is int and 0 < n <= MAX_CHOICES), default=1)
    prompts = document.get("prompt")
    return each * (
        len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    )
