"""An engine that does what a test tells it, request by request. Stands in for a GPU's timing, which cannot be had here."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import orjson

from workers.engine import Delta, EngineCall, EngineLimits, EngineLoad, Final, Usage

Script = Callable[[EngineCall], AsyncGenerator[Delta | Final, None]]


def payload(text: str, *, finish: str | None = None) -> bytes:
    """One chunk of a chat answer."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return orjson.dumps({"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


async def answer(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
    """Three words, or one whole answer."""
    if call.stream:
        for word in ("a ", "b ", "c"):
            yield Delta(payload(word), 1)
        yield Final(b"", Usage(5, 3, 2), "stop")
    else:
        yield Final(b'{"choices":[]}', Usage(5, 3, 0), "stop")


@dataclass
class ScriptedEngine:
    """`script` answers; `seen` and `aborted` record job ids."""

    script: Script = answer
    slots: int = 4
    name: str = "scripted"
    pid: int | None = None
    healthy: bool = True
    seen: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _now: int = 0

    async def start(self) -> None: ...

    async def generate(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        self.seen.append(call.job_id)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            async for item in self.script(call):
                yield item
        except asyncio.CancelledError:
            self.aborted.append(call.job_id)
            raise
        finally:
            self._now -= 1

    async def abort(self, job_id: str) -> None: ...

    async def load(self) -> EngineLoad:
        return EngineLoad(None, None, None)

    async def health(self) -> bool:
        return self.healthy

    async def limits(self) -> EngineLimits:
        return EngineLimits(self.slots, None, "m")

    async def close(self) -> None: ...
