"""One request on its way to its caller: steps become events or the whole answer, are counted, and fail where they shall."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from workers.engines.sim.asks import Ask
from workers.engines.sim.failures import Fault
from workers.engines.sim.metrics import Metrics
from workers.engines.sim.realtime import Stream
from workers.engines.sim.replica import Emitted
from workers.engines.sim.wire import (
    DONE,
    Header,
    chunk,
    document,
    event,
    first_chunk,
    usage,
    usage_chunk,
)

GARBAGE = b'{"choices": [{"delta": {"content": "\xff\xfe'


@dataclass(frozen=True, slots=True)
class Call:
    """`strike` does what a fault of the whole engine does."""

    ask: Ask
    header: Header
    fault: Fault
    wrong_usage: bool
    strike: Callable[[Fault], None]


class Answering:
    """Either `events` or `whole`, once."""

    def __init__(self, call: Call, stream: Stream, *, metrics: Metrics) -> None:
        self._call = call
        self._stream = stream
        self._metrics = metrics
        self._begun = self._last = time.monotonic()
        self._first: float | None = None
        self._tokens = 0

    async def whole(self) -> bytes:
        async for _ in self._steps():
            await self._fail()
        if self._call.fault is Fault.GARBAGE:
            return GARBAGE
        return orjson.dumps(document(self._call.header, self._call.ask, usage=self._usage()))

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, some at a time."""
        ask, header = self._call.ask, self._call.header
        opening = b"".join(first_chunk(header, index) for index in range(len(ask.answers[0])) if ask.chat)
        async for tokens in self._steps():
            yield opening + b"".join(event(self._chunk(token)) for token in tokens)
            opening = b""
            if self._call.fault is Fault.GARBAGE:
                yield b"data: " + GARBAGE + b"\n\n"
                return
            await self._fail()
        if ask.include_usage:
            yield event(usage_chunk(header, ask, usage=self._usage()))
        yield DONE

    async def _steps(self) -> AsyncIterator[list[Emitted]]:
        while not self._stream.ended:
            tokens = await self._stream.next()
            now = time.monotonic()
            if self._first is None:
                self._first = now
                self._metrics.first_token.observe(now - self._begun)
            else:
                self._metrics.between_tokens.observe(now - self._last)
            self._last = now
            self._tokens += len(tokens)
            yield tokens
        self._count()

    def _chunk(self, token: Emitted) -> dict[str, Any]:
        ask = self._call.ask
        index = int(token.request_id.rpartition("-")[2]) * len(ask.answers[0]) + token.index
        return chunk(self._call.header, ask, index=index, position=token.position, ends=token.ends)

    def _usage(self) -> dict[str, Any]:
        cached, wrong = self._stream.cached_tokens, self._call.wrong_usage
        return usage(self._call.ask, completion_tokens=self._tokens, cached_tokens=cached, wrong=wrong)

    async def _fail(self) -> None:
        if self._call.fault is Fault.HANG:
            await asyncio.Event().wait()
        if self._call.fault in (Fault.CRASH, Fault.FREEZE):
            self._call.strike(self._call.fault)

    def _count(self) -> None:
        answers = [answer for one in self._call.ask.answers for answer in one]
        self._metrics.whole.observe(self._last - self._begun)
        if self._first is not None and self._tokens > len(answers):
            self._metrics.per_token.observe((self._last - self._first) / (self._tokens / len(answers) - 1))
        for prompt in self._call.ask.prompts:
            self._metrics.prompt_tokens.observe(prompt.tokens)
        for answer in answers:
            self._metrics.generation_tokens.observe(answer.tokens)
            self._metrics.ended(answer.reason)
