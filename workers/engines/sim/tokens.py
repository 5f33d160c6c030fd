"""Text as tokens and back, by a rule instead of a vocabulary. Deterministic across processes, about four characters a token.

A word is cut into pieces of at most four letters, a leading space belongs to its piece. What the engine generates is made
of such pieces, so an answer that comes back in the next turn's prompt has the tokens that were generated: its blocks hit.
"""

import re
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson

PIECE = re.compile(r"\s?[^\s]{1,4}|\s")
WORDS = (
    " the", " and", " to", " of", " in", " is", " it", " as", " for", " that", " with", " you", " this", " can", " be", " are",
    " from", " have", " more", " one", " time", " work", " each", " when", " how", " will", " also", " step", " use", " such",
    " data", " list",
)  # fmt: skip
START, TURN, END, ANSWER = 1, 2, 3, 4  # the chat template's marks; tokens of text are far above


@lru_cache(maxsize=1 << 16)
def token(piece: str) -> int:
    return 256 + zlib.crc32(piece.encode("utf-8", "surrogatepass"))


def tokenise(text: str) -> list[int]:
    return [token(piece) for piece in PIECE.findall(text)]


def chat_tokens(body: Mapping[str, Any]) -> list[int]:
    """The tools and the messages as a chat template would lay them out, ready for the answer."""
    found = [START]
    if body.get("tools"):
        found += [TURN, *tokenise(orjson.dumps(body["tools"]).decode()), END]
    for message in body["messages"]:
        role = message.get("role", "user")
        mark = ANSWER if role == "assistant" else TURN
        found += [mark, *([] if role == "assistant" else tokenise(str(role)))]
        found += [*content_tokens(message.get("content")), *content_tokens(message.get("tool_calls")), END]
    return [*found, ANSWER]


def content_tokens(content: Any) -> list[int]:
    """A text, or parts of which the texts count as such and the rest as its JSON."""
    if content is None:
        return []
    if isinstance(content, str):
        return tokenise(content)
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else None for part in content)
        return [
            t for part, text in zip(content, texts, strict=True) for t in content_tokens(text or _json(part))
        ]
    return tokenise(_json(content))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def word(seed: int, position: int) -> str:
    """The text of an answer's token. It depends on nothing but the answer and the place in it."""
    return WORDS[zlib.crc32(position.to_bytes(8, "little"), seed & 0xFFFFFFFF) % len(WORDS)]


def words(seed: int, positions: Iterable[int]) -> list[int]:
    """The same as token ids."""
    return [token(word(seed, position)) for position in positions]
