"""What OpenAI's requests mean to the engine: the prompt's tokens, how long each answer gets, what is refused. Pure.

Refusals have vLLM's words and shape where it has any. Stop strings, tools' answers and sampling parameters are accepted and
have no effect: there is no model.
"""

import hashlib
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workers.engines.sim.scheduler import Limits
from workers.engines.sim.sequence import Answer, Prompt, prompt_of
from workers.engines.sim.tokens import START, chat_tokens, tokenise

SPREAD = 0.8  # sigma of the log-normal lengths: the tail that chat answers have
MAX_ANSWERS = 128


class Refused(Exception):
    """The request is at fault; it is answered with `status` and says why. Ends in the server, never in Headway."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def document(self) -> dict[str, Any]:
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass(frozen=True, slots=True)
class Model:
    """What is served: its name, the engine's limits, how many tokens answers have on average, and the seed of it all."""

    name: str
    limits: Limits
    mean_output_tokens: int = 200
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for `len(prompts)` times `len(answers[0])` answers; choices are numbered through."""

    chat: bool
    prompts: tuple[Prompt, ...]
    answers: tuple[tuple[Answer, ...], ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    priority: int

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)


def read(body: Any, model: Model, *, chat: bool) -> Ask:
    """Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the request body must be a JSON object")
    if body.get("model") not in (None, model.name):
        raise Refused(f"The model `{body['model']}` does not exist.", status=404, param="model")
    salt = body.get("cache_salt") or ""
    if not isinstance(salt, str):
        raise Refused("Parameter 'cache_salt' must be a non-empty string if provided.")
    stream = body.get("stream") is True
    options = body.get("stream_options")
    if options is not None and not stream:
        raise Refused("Stream options can only be defined when `stream=True`.")
    prompts = tuple(
        prompt_of(tokens, salt=salt, block_tokens=model.limits.block_tokens)
        for tokens in _prompts(body, chat=chat)
    )
    return Ask(
        chat=chat,
        prompts=prompts,
        answers=tuple(_answers(body, model, prompt=prompt) for prompt in prompts),
        stream=stream,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        logprobs=body.get("logprobs") not in (None, False),
        priority=_priority(body, model.limits),
    )


def _priority(body: Mapping[str, Any], limits: Limits) -> int:
    priority = _integer(body, "priority", default=0)
    if priority and limits.policy != "priority":
        raise Refused(f"Got priority {priority} but Priority scheduling is not enabled.")
    return priority


def _prompts(body: Mapping[str, Any], *, chat: bool) -> Iterator[list[int]]:
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise Refused("messages must be a list of at least one message", param="messages")
        yield chat_tokens(body)
        return
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    for one in prompt if several and isinstance(prompt, list) else [prompt]:
        if isinstance(one, str):
            yield [START, *tokenise(one)]
        elif isinstance(one, list) and one and all(type(t) is int and t >= 0 for t in one):
            yield one
        else:
            raise Refused("prompt must be a text, tokens, or a list of those", param="prompt")


def _answers(body: Mapping[str, Any], model: Model, *, prompt: Prompt) -> tuple[Answer, ...]:
    count = _integer(body, "n", default=1)
    if not 1 <= count <= MAX_ANSWERS:
        raise Refused(f"n must be between 1 and {MAX_ANSWERS}, got {count}.", param="n")
    limit = _limit(body, model.limits, prompt_tokens=prompt.tokens)
    least = min(limit, _integer(body, "min_tokens", default=0))
    digest = hashlib.blake2b(repr((prompt.hashes[-1:], prompt.root, prompt.tail)).encode(), digest_size=8)
    found = []
    for index in range(count):
        rng = random.Random(f"{model.seed}/{body.get('seed')}/{digest.hexdigest()}/{index}")
        seed = rng.getrandbits(32)
        length = math.ceil(model.mean_output_tokens * rng.lognormvariate(-(SPREAD**2) / 2, SPREAD))
        natural = max(1, least, length)
        if body.get("ignore_eos") is True or natural > limit:
            found.append(Answer(limit, seed, "length"))
        else:
            found.append(Answer(natural, seed, "stop"))
    return tuple(found)


def _limit(body: Mapping[str, Any], limits: Limits, *, prompt_tokens: int) -> int:
    """The most tokens that an answer may have. Raises Refused in vLLM's words: clients parse them."""
    room = limits.max_model_len - prompt_tokens
    wanted = _integer(
        body, "max_completion_tokens", default=_integer(body, "max_tokens", default=max(1, room))
    )
    if wanted < 1:
        raise Refused(f"max_tokens must be at least 1, got {wanted}.", param="max_tokens")
    if room < 1 or wanted > room:
        raise Refused(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested {wanted}"
            f" output tokens and your prompt contains {prompt_tokens} input tokens, for a total of"
            f" {prompt_tokens + wanted} tokens. Please reduce the length of the input prompt or the number of"
            " requested output tokens.",
            param="input_tokens",
        )
    return wanted


def _integer(body: Mapping[str, Any], name: str, *, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise Refused(f"{name} must be an integer", param=name)
    return value
