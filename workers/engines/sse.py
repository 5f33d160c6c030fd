"""Cuts an engine's event stream into payloads without parsing them. Pure; driven by `openai_http`.

Invariant: a read of a hundred tokens costs about as much as a read of one: splitting and the search for the few
payloads that matter (usage, errors, the end) run over whole blocks of bytes, and only those payloads are parsed.
Source: WHATWG HTML, section 9.2 (server-sent events).
"""

import re
from typing import Any

import orjson

from broker.errors import EngineError
from workers.engine import Delta, EngineBroken, Usage
from workers.engines.faults import event_fault
from workers.engines.usage import MOST_TOKENS

DONE = b"[DONE]"
MAX_EVENT_BYTES = 8 << 20

# A quote inside a JSON string is escaped, so `"usage":` can only be a key.
_SPECIAL = re.compile(
    rb'\[DONE\]|"usage"\s*:\s*\{|"error"\s*:\s*[^\sn]|"object"\s*:\s*"error"|"prompt_progress"'
)
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')


def _special(block: bytes) -> bool:
    """Plain searches first: together they take a fifth of the time of the expression, and rarely find anything."""
    hint = DONE in block or b'"usage"' in block or b'"error"' in block or b'"prompt_progress"' in block
    return hint and _SPECIAL.search(block) is not None


def _whole(payloads: bytes, newlines: int = 0) -> bool:
    """Whether each looks like a JSON object in UTF-8: what was cut off or garbled on its way does not. Whatever else is sent is parsed."""
    if payloads[:1] != b"{" or payloads[-1:] != b"}" or payloads.count(b"}\n{") != newlines:
        return False
    if payloads.isascii():
        return True
    try:
        payloads.decode()
    except UnicodeDecodeError:
        return False
    return True


class StreamParser:
    """Of one stream. `failure` is what the engine reported after all that `feed` has returned.

    `usage_wanted`, `progress_wanted`: the caller gets these chunks too, having asked for them.
    """

    def __init__(self, *, usage_wanted: bool = False, progress_wanted: bool = False) -> None:
        self.done = False
        self.failure: EngineError | None = None
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self._usage_wanted = usage_wanted
        self._progress_wanted = progress_wanted
        self._usages: list[Usage] = []  # of choices that ended
        self._usage_chunks: list[bytes] = []
        self._rest = b""

    def feed(self, chunk: bytes) -> Delta | None:
        """The payloads that are complete now. Raises EngineBroken if one has no end."""
        buffer = self._rest + chunk if self._rest else chunk
        if b"\r" in buffer:
            buffer = _unix_lines(buffer)
        end = buffer.rfind(b"\n\n")
        if end < 0:
            self._rest = buffer
            if len(buffer) > MAX_EVENT_BYTES:
                raise EngineBroken(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes")
            return None
        self._rest = buffer[end + 2 :]
        return self._split(buffer[:end])

    def close(self) -> Delta | None:
        """At the end of the stream: what was held back. Raises EngineBroken if the engine stopped in the middle."""
        if not self.done and self.finish_reason is None:
            raise EngineBroken("the engine's stream ended before its answer did")
        held = self._held_usage()
        return Delta(held[0], 1) if held else None

    def _split(self, block: bytes) -> Delta | None:
        joined = block[6:].replace(b"\n\ndata: ", b"\n")
        newlines = joined.count(b"\n")
        plain = block.startswith(b"data: ") and block.count(b"\n") == 2 * newlines
        if plain and _whole(joined, newlines) and not _special(joined):
            self._note_finish(joined)
            return Delta(joined, newlines + 1)
        payloads = self._sift(joined.split(b"\n") if plain else _payloads(block))
        if not payloads:
            return None
        joined = b"\n".join(payloads)
        self._note_finish(joined)
        return Delta(joined, len(payloads))

    def _note_finish(self, payloads: bytes) -> None:
        if reasons := _FINISH.findall(payloads):
            self.finish_reason = reasons[-1].decode()

    def _sift(self, payloads: list[bytes]) -> list[bytes]:
        """What the caller gets. Takes the usage, the end and an error out."""
        kept: list[bytes] = []
        for payload in payloads:
            if payload == DONE:
                self.done = True
                return kept + self._held_usage()
            if (_whole(payload) and not _special(payload)) or self._passes(payload):
                kept.append(payload)
            if self.failure is not None:
                break
        return kept

    def _passes(self, payload: bytes) -> bool:
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            self.failure = EngineBroken("the engine sent a stream event that is not JSON")
            return False
        if not isinstance(event, dict):
            return True
        self.failure = event_fault(event, payload)
        if self.failure is not None:
            return False
        if isinstance(event.get("usage"), dict):
            return self._count(event, payload)
        return self._progress_wanted or "prompt_progress" not in event

    def _count(self, event: dict[str, Any], payload: bytes) -> bool:
        """False for a chunk that carries nothing but the usage: it is held back for the end."""
        usage = read_usage(event["usage"], event.get("timings"))
        choices = event.get("choices")
        if choices:  # a running count (vLLM), or the end of one of several choices (llama.cpp's completions)
            ended = any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)
            self._usages += [usage] if ended else []
            self.usage = _total(self._usages) if ended else usage
            return True
        if not self._usage_chunks:
            self._usages = []
        self._usages.append(usage)
        self._usage_chunks.append(payload)
        self.usage = _total(self._usages)
        return False

    def _held_usage(self) -> list[bytes]:
        """One chunk if it was asked for. llama.cpp sends one for each of `n` choices, and OpenAI one for all."""
        chunks, self._usage_chunks = self._usage_chunks, []
        if not self._usage_wanted or not chunks or self.usage is None:
            return []
        if len(chunks) == 1:
            return chunks
        event = orjson.loads(chunks[-1])
        event["usage"]["prompt_tokens"] = self.usage.prompt_tokens
        event["usage"]["completion_tokens"] = self.usage.completion_tokens
        event["usage"]["total_tokens"] = self.usage.prompt_tokens + self.usage.completion_tokens
        return [orjson.dumps(event)]


def read_usage(usage: dict[str, Any], timings: object = None) -> Usage:
    """From OpenAI's usage object; embeddings have no completion. `timings`: llama.cpp's, which had it first."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None and isinstance(timings, dict):
        cached = timings.get("cache_n")
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))


def _count(value: object) -> int:
    """What cannot be stays as wrong as it was, but small enough to be added up and written as JSON (64 bits)."""
    return max(-1, min(value, MOST_TOKENS + 1)) if type(value) is int else 0  # a bool is no count


def _total(parts: list[Usage]) -> Usage:
    """Choices share their prompt."""
    return Usage(
        prompt_tokens=max(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        cached_tokens=max(part.cached_tokens for part in parts),
    )


def _unix_lines(buffer: bytes) -> bytes:
    """A carriage return at the very end may be half of a line end, and waits for the rest."""
    tail = b"\r" if buffer.endswith(b"\r") else b""
    body = buffer[: len(buffer) - len(tail)]
    return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail


def _payloads(block: bytes) -> list[bytes]:
    """By the rules of the format: comments, other fields, no space after the colon, more than one data line."""
    payloads = []
    for event in block.split(b"\n\n"):
        lines = [line.partition(b":") for line in event.split(b"\n")]
        data = [value.removeprefix(b" ") for field, _, value in lines if field == b"data"]
        if data:
            payloads.append(b" ".join(data))
    return payloads
