"""What earlier requests like this one led to, as the models see it, and what makes two requests alike. Pure."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from predictor.prompt_parts import Parts, read
from predictor.prompt_types import words

SHAPE_WORDS = 5  # a template's fixed words come first far more often than last
HEAD_CHARS = 128  # where those words are looked for
SYSTEM_CHARS = 1024  # of a system prompt
_NO_DIGITS = str.maketrans("", "", "0123456789")


@dataclass(frozen=True, slots=True)
class History:
    """Output tokens of finished requests of one kind; logarithms are of 1 + tokens. `count` 0: nothing is known."""

    count: int = 0
    mean_log: float = 0.0
    q50: float = 0.0  # tokens
    q90: float = 0.0  # tokens

    @classmethod
    def of(cls, outputs: Iterable[float]) -> "History":
        """From the output tokens themselves."""
        ordered = sorted(outputs)
        if not ordered:
            return NO_HISTORY
        last = len(ordered) - 1
        mean_log = math.fsum(math.log1p(tokens) for tokens in ordered) / len(ordered)
        return cls(len(ordered), mean_log, ordered[round(0.5 * last)], ordered[round(0.9 * last)])


NO_HISTORY = History()


@dataclass(frozen=True, slots=True)
class Past:
    """`template`: of the same tenant, template (`template_key`) and model. `pool`: of the model, whatever the prompt."""

    template: History = NO_HISTORY
    pool: History = NO_HISTORY


NO_PAST = Past()


def template_key(document: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that requests made from one template have in common. Nothing of a prompt can be read from it.

    The system prompt and the first words of the last message, figures and case ignored, the size in powers of four, and
    whether tools or JSON are asked for.
    """
    return key_of(read(document), document=document)


def key_of(parts: Parts, *, document: Mapping[str, Any]) -> str:
    """As `template_key`, for a document that has been read already."""
    head = words(parts.user[:HEAD_CHARS].translate(_NO_DIGITS))[:SHAPE_WORDS]
    size = len(parts.user).bit_length() // 2
    asks = f"{bool(document.get('tools'))} {_kind(document.get('response_format'))} {parts.last_role} {size}"
    system = parts.system[:SYSTEM_CHARS].encode("utf-8", "surrogatepass").translate(None, b"0123456789")
    text = b"\x00".join([system, *head, asks.encode("utf-8", "surrogatepass")])
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _kind(response_format: object) -> str:
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    return kind if isinstance(kind, str) else ""
