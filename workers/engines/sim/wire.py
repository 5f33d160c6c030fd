"""OpenAI's answer documents and stream chunks, as vLLM writes them. Pure."""

import zlib
from dataclasses import dataclass
from typing import Any

import orjson

from workers.engines.sim.asks import Ask
from workers.engines.sim.tokens import word

DONE = b"data: [DONE]\n\n"
WRONG_FACTOR = 10


@dataclass(frozen=True, slots=True)
class Header:
    """What all documents of one answer begin with. `created`: Unix seconds."""

    id: str
    created: int
    model: str

    def of(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def first_chunk(header: Header, index: int) -> bytes:
    """A chat stream says who speaks before the first token; text completions have no such chunk."""
    choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
    return event(header.of("chat.completion.chunk") | {"choices": [choice | {"finish_reason": None}]})


def chunk(header: Header, ask: Ask, *, index: int, position: int, ends: str | None) -> dict[str, Any]:
    """One token of one choice."""
    seed = seed_of(ask, index)
    text = word(seed, position)
    choice: dict[str, Any] = {"index": index}
    choice |= {"delta": {"content": text}} if ask.chat else {"text": text}
    positions = range(position, position + 1)
    choice |= {"logprobs": _logprobs(ask, seed, positions=positions), "finish_reason": ends}
    return header.of(_chunk_kind(ask)) | {"choices": [choice]}


def usage_chunk(header: Header, ask: Ask, *, usage: dict[str, Any]) -> dict[str, Any]:
    return header.of(_chunk_kind(ask)) | {"choices": [], "usage": usage}


def document(header: Header, ask: Ask, *, usage: dict[str, Any]) -> dict[str, Any]:
    """The whole answer."""
    kind = "chat.completion" if ask.chat else "text_completion"
    answers = [answer for one in ask.answers for answer in one]
    choices = []
    for index, answer in enumerate(answers):
        positions = range(answer.tokens)
        text = "".join(word(answer.seed, position) for position in positions)
        choice: dict[str, Any] = {"index": index}
        choice |= {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
        choice |= {
            "logprobs": _logprobs(ask, answer.seed, positions=positions),
            "finish_reason": answer.reason,
        }
        choices.append(choice)
    return header.of(kind) | {"choices": choices, "usage": usage}


def usage(ask: Ask, *, completion_tokens: int, cached_tokens: int, wrong: bool = False) -> dict[str, Any]:
    """`wrong`: as a broken engine counts, no prompt and ten times the answer."""
    prompt_tokens = 0 if wrong else ask.prompt_tokens
    completion_tokens *= WRONG_FACTOR if wrong else 1
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _chunk_kind(ask: Ask) -> str:
    return "chat.completion.chunk" if ask.chat else "text_completion"


def seed_of(ask: Ask, index: int) -> int:
    per_prompt = len(ask.answers[0])
    return ask.answers[index // per_prompt][index % per_prompt].seed


def _logprobs(ask: Ask, seed: int, *, positions: range) -> dict[str, Any] | None:
    """Made up like the words, between 0 and -3."""
    if not ask.logprobs:
        return None
    pieces = [word(seed, position) for position in positions]
    values = [-(zlib.crc32(p.to_bytes(8, "big"), seed & 0xFFFFFFFF) % 3000) / 1000 for p in positions]
    if not ask.chat:
        return {
            "tokens": pieces,
            "token_logprobs": values,
            "top_logprobs": None,
            "text_offset": _offsets(pieces),
        }
    rows = zip(pieces, values, strict=True)
    return {
        "content": [
            {"token": piece, "logprob": value, "bytes": list(piece.encode()), "top_logprobs": []}
            for piece, value in rows
        ]
    }


def _offsets(pieces: list[str]) -> list[int]:
    starts, at = [], 0
    for piece in pieces:
        starts.append(at)
        at += len(piece)
    return starts
