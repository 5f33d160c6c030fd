"""The forecast that admission asks for, behind a protocol, and the simple one; `learned.py` has the one that learns.

`SimpleEstimator` counts characters and believes `max_tokens`. It never fails, reads the text once at most, and serves where
no models are loaded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.job import Forecast
from broker.tenants import DEFAULT
from predictor.features import Features

CHARS_PER_TOKEN = 4.0  # English prose under current BPE tokenizers: 4.0-4.6 characters a token
TOKENS_PER_WIDE = 0.7  # one Chinese, Japanese or Korean character: 0.6-1.0 tokens
TOKENS_PER_MESSAGE = 4  # role and separators of a chat template
TOKENS_PER_DATA_URL = 765.0  # an image: what GPT-4o counts for 1024 x 1024 pixels; not its base64
DEFAULT_OUTPUT_TOKENS = 256
MAX_DEPTH = 64  # of nested JSON; no real schema comes near
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff00-\uffef]")


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a pool's engine works for one request, seconds per token."""

    prefill_s_per_token: float = 0.0005
    decode_s_per_token: float = 0.02


class Estimator(Protocol):
    """Says what a request will need. Must not raise and must not block."""

    def forecast(
        self, pool: str, body: Mapping[str, Any], *, tenant: str = DEFAULT, features: Features | None = None
    ) -> Forecast:
        """`body`: a request in OpenAI's shape, of any endpoint. `features`: as `features.extract` has read them, if it has."""
        ...


@dataclass(slots=True)
class SimpleEstimator:
    """Output = `max_tokens` where given (at most), else a constant; time is linear in both token counts."""

    speeds: dict[str, Speed] = field(default_factory=dict)

    def forecast(
        self,
        pool: str,
        body: Mapping[str, Any],
        *,
        tenant: str = DEFAULT,  # noqa: ARG002
        features: Features | None = None,  # noqa: ARG002
    ) -> Forecast:
        speed = self.speeds.get(pool, Speed())
        prompt = prompt_tokens(body)
        output = output_tokens(body)
        run_s = prompt * speed.prefill_s_per_token + output * speed.decode_s_per_token
        return Forecast(prompt, output, run_s, kv_tokens=prompt + output)


def text_tokens(text: str) -> float:
    """Tokens of a text, estimated; CJK characters are counted apart."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return wide * TOKENS_PER_WIDE + (len(text) - wide) / CHARS_PER_TOKEN


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Estimated tokens of everything the engine has to read; at least 1."""
    total = 0.0
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in messages:
            carried = (
                [message.get("content"), message.get("tool_calls")] if isinstance(message, dict) else message
            )
            total += TOKENS_PER_MESSAGE + _any_tokens(carried)
    for name in ("prompt", "input", "tools"):
        total += _any_tokens(body.get(name))
    return max(1, round(total))


def _any_tokens(value: Any, depth: int = 0) -> float:
    """Text in any of the shapes the API takes: a string, token ids, parts, nested schemas."""
    if depth > MAX_DEPTH:
        return 0.0
    if isinstance(value, str):
        return TOKENS_PER_DATA_URL if value.startswith("data:") else text_tokens(value)
    if isinstance(value, list):
        return sum(1.0 if isinstance(item, int) else _any_tokens(item, depth + 1) for item in value)
    if isinstance(value, dict):
        fields = ((name, item) for name, item in value.items() if name != "type")
        return sum(text_tokens(str(name)) + _any_tokens(item, depth + 1) for name, item in fields)
    return 0.0


def output_tokens(body: Mapping[str, Any]) -> int:
    """What the answer may need, summed over `n` choices; embeddings need none."""
    if "input" in body and "messages" not in body:
        return 0
    limits = (body.get("max_completion_tokens"), body.get("max_tokens"))
    most = next((limit for limit in limits if isinstance(limit, int) and limit > 0), DEFAULT_OUTPUT_TOKENS)
    n = body.get("n")
    return min(most, 32_768) * (n if isinstance(n, int) and 0 < n <= 128 else 1)
