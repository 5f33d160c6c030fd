"""Hashes of a prompt's beginning, by which a claim finds the worker whose engine has it cached. Pure.

What the engine renders first comes first: tools, then the messages from the system prompt on. Each hash covers the text
up to a length of `CUTS`, so equal hashes mean equal prefixes, and six of them tell prefixes of 2 KB and of 64 KB apart.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from broker.tenants import DEFAULT

CUTS = (1024, 2048, 4096, 8192, 16_384, 65_536)  # bytes; a shorter prefix saves an engine next to nothing
DIGEST_BYTES = (
    4  # of a pool's prefixes of some hours two collide once in a blue moon, and cost one cache miss
)


def prefix_chain(body: Mapping[str, Any], *, tenant: str = DEFAULT) -> str:
    """Hexadecimal hashes joined by commas, shortest prefix first; empty for a prompt shorter than the first cut.

    Tenants have hashes of their own: engines keep their caches apart (docs/engines.md), and how long a job waits for a
    worker that has its prefix must not tell what others have asked.
    """
    text = b"".join(_beginning(body))[: CUTS[-1]]
    salt = b"" if tenant == DEFAULT else tenant.encode()
    digest, found, start = hashlib.blake2b(digest_size=DIGEST_BYTES, key=salt), list[str](), 0
    for cut in CUTS:
        if len(text) < cut:
            break
        digest.update(text[start:cut])
        found.append(digest.hexdigest())
        start = cut
    return ",".join(found)


def conversation_key(body: Mapping[str, Any]) -> int | None:
    """64 bits that all turns of a conversation have in common: of its messages up to the first of the user.

    So a system prompt that many conversations share does not bring them together. None if there is no such message.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    digest = hashlib.blake2b(digest_size=8)
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        digest.update(_text(role))
        digest.update(_text(message.get("content") if isinstance(message, dict) else message))
        if role == "user":
            return int.from_bytes(digest.digest())
    return None


def _beginning(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Pieces until the longest cut is full."""
    size = 0
    for piece in _pieces(body):
        yield piece
        size += len(piece)
        if size >= CUTS[-1]:
            return


def _pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    if body.get("tools"):
        yield orjson.dumps(body["tools"])
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in messages:
            yield _text(message.get("role") if isinstance(message, dict) else "")
            yield _text(message.get("content") if isinstance(message, dict) else message)
    elif body.get("prompt"):
        yield _text(body["prompt"])


def _text(value: Any) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else orjson.dumps(value)
