"""How many tokens a text has: estimated from its characters, or counted by the pool's own tokenizer where one is named.

Both read a bounded part of a long text and carry it over to the whole, so that neither costs more for a long prompt.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

logger = logging.getLogger(__name__)

WINDOW_BYTES = 384  # of a long text, this much is looked at in each of WINDOWS places
WINDOWS = 3
COUNTED_CHARS = 512  # what a real tokenizer is given at most: about 0.1 ms
_CLASSES = ((0x41, 0x5B, "A"), (0x61, 0x7B, "a"), (0x30, 0x3A, "0"), (0x80, 0xC0, "x"), (0xC0, 0xE3, "l"))


def _table() -> bytes:
    """Kind of character by its (first) byte in UTF-8: A a letter cases, 0 digit, space, newline, . other ASCII,
    w wide (kana, Chinese, Korean, full width), l other letters above ASCII, e beyond the BMP, x a further byte."""
    table = bytearray(b"." * 0x80 + b"w" * 0x70 + b"e" * 0x10)
    for first, end, kind in _CLASSES:
        table[first:end] = kind.encode() * (end - first)
    table[0x09] = table[0x20] = ord(" ")
    table[0x0A] = table[0x0D] = ord("\n")
    return bytes(table)


_KINDS = _table()


class Makeup(NamedTuple):
    """What a text consists of, each as a share of its bytes (of the part looked at)."""

    size: int  # bytes of the whole text
    letters: float
    digits: float
    marks: float  # ASCII punctuation
    spaces: float
    newlines: float
    wide: float  # characters, not bytes
    accented: float  # letters above ASCII that are not wide; characters
    words: float  # starts of Latin words after a space
    turns: float  # aA and a0: where camel case and base64 break
    pairs: float  # two marks, or two spaces, in a row: one token where they are code

    @property
    def base64(self) -> bool:
        """Hardly a space, and cases mixed: nothing that is read."""
        return self.size > 128 and self.spaces + self.newlines < 0.02 and self.turns > 0.1


NOTHING = Makeup(0, *([0.0] * 10))


def makeup(text: bytes) -> Makeup:
    """`text`: UTF-8. Reads at most WINDOWS × WINDOW_BYTES of it, spread evenly."""
    size = len(text)
    if not size:
        return NOTHING
    if size > WINDOWS * WINDOW_BYTES:
        step = (size - WINDOW_BYTES) // (WINDOWS - 1)
        text = b"".join([text[at : at + WINDOW_BYTES] for at in range(0, size, step)][:WINDOWS])
    kinds = text.translate(_KINDS)
    count, seen = kinds.count, len(kinds)
    upper = count(b"A")
    return Makeup(
        size=size,
        letters=(count(b"a") + upper) / seen,
        digits=count(b"0") / seen,
        marks=count(b".") / seen,
        spaces=count(b" ") / seen,
        newlines=count(b"\n") / seen,
        wide=count(b"w") / seen,
        accented=(count(b"l") + count(b"e")) / seen,
        words=(count(b" a") + (count(b" A") if upper else 0)) / seen,
        turns=((count(b"aA") if upper else 0) + count(b"a0")) / seen,
        pairs=(count(b"..") + count(b"  ")) / seen,
    )


# Tokens per occurrence, in the order of Makeup's shares. Source: robust least squares against the mean of two vocabularies
# (cl100k, Qwen) on English and Chinese prompts, Python, Markdown, JSON, base64 and hexadecimal: docs/predictor.md.
WEIGHTS = (0.045, 0.126, 1.253, 0.619, 0.01, 0.892, 0.402, 0.258, 2.728, -1.122)


def estimate(made: Makeup) -> float:
    """Tokens of a text of that makeup, under a current byte-pair vocabulary of 100,000 entries or more."""
    rate = sum(weight * share for weight, share in zip(WEIGHTS, made[1:], strict=True))
    return made.size * min(max(rate, 0.1), 1.5)


class Count(Protocol):
    """Tokens of texts under one pool's tokenizer. Must not raise and must be fast (see `extract`)."""

    def tokens(self, text: str, made: Makeup) -> float:
        """`made`: of the same text."""
        ...


@dataclass(frozen=True, slots=True)
class Estimated:
    """`factor`: the pool's actual prompt tokens over the estimate, as its engine's `usage` shows them (1: unknown)."""

    factor: float = 1.0

    def tokens(self, text: str, made: Makeup) -> float:  # noqa: ARG002 - the protocol's
        return estimate(made) * self.factor


class Counted:
    """By a tokenizer of the `tokenizers` package: exact for short texts; of a long one the middle is counted, and
    shows how far the estimate is off for the whole."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def tokens(self, text: str, made: Makeup) -> float:
        if len(text) <= COUNTED_CHARS:
            return float(self._count(text))
        start = (len(text) - COUNTED_CHARS) // 2
        part = text[start : start + COUNTED_CHARS]
        guessed = estimate(makeup(part.encode("utf-8", "surrogatepass")))
        return estimate(made) * self._count(part) / max(guessed, 1.0)

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def load(path: Path | None, *, factor: float = 1.0) -> Count:
    """The pool's own tokenizer (a `tokenizer.json`), or the estimate with a warning: counting never stops a start."""
    if path is None:
        return Estimated(factor)
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - optional
    except ImportError:
        logger.warning(f"tokenizer {path.name}: `tokenizers` is not installed; tokens are estimated")
        return Estimated(factor)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        logger.warning(f"tokenizer {path.name} cannot be read ({error}); tokens are estimated")
        return Estimated(factor)
    try:
        return Counted(Tokenizer.from_str(text))
    except Exception as error:  # noqa: BLE001 - the package raises bare Exception for a file it does not understand
        logger.warning(f"tokenizer {path.name} is not a tokenizer.json ({error}); tokens are estimated")
        return Estimated(factor)
