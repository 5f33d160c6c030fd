"""One lease, from engine call to end: run, stream, finish, or say why not. Every write is fenced by the lease's token.

What an engine's failure means for the job is decided here and nowhere else.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

import orjson

from broker.consumer import Consumer
from broker.errors import EngineError, QueueFull, RedisAway, StaleToken
from broker.heirs import Heirs
from broker.job import Lease
from broker.scripts import Ending, Return
from workers.appender import Appender
from workers.assemble import Assembler
from workers.engine import (
    Engine,
    EngineAborted,
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineRejected,
    EngineUnavailable,
    Final,
    Usage,
)
from workers.escalate import Escalation
from workers.refusals import error_document, rejection

log = logging.getLogger("headway.execute")
T = TypeVar("T")
WRITE_RETRY_S = 0.1


class Outcome(StrEnum):
    """What became of one lease, as the worker sees it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY = "retry"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    HANDED_BACK = "handed back"
    ESCALATED = "escalated"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter over the upper half, so that retries of one incident spread. Seconds."""

    base_s: float = 0.5
    cap_s: float = 30.0

    def delay_s(self, attempt: int) -> float:
        """`attempt`: 1 for the first."""
        return float(min(self.cap_s, self.base_s * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))


@dataclass(slots=True)
class Run:
    """One attempt. `on_tokens` is told how many have come; `handing_back` is asked when the task is cancelled: why the job is handed back, or None
    if it has been taken away."""

    lease: Lease
    engine: Engine
    consumer: Consumer
    appender: Appender
    trusted_until: Callable[[str], float]
    backoff: Backoff
    handing_back: Callable[[str], str | None]
    on_tokens: Callable[[str, int], None]
    heirs: Heirs | None = None
    escalation: Escalation | None = None  # of a lease whose job may be handed on to a larger model
    usage: Usage | None = None  # once it is known
    busy_s: float = 0.0  # the engine wants to be left alone for so long

    async def execute(self) -> Outcome:
        """Never raises but for a cancellation that hands nothing back."""
        try:
            return await self._attempt()
        except asyncio.CancelledError:
            reason = self.handing_back(self.lease.job_id)
            if reason is None:
                raise
            return await self._give_back(Return(reason, error=_stopped()), Outcome.HANDED_BACK)
        except (StaleToken, EngineError) as error:
            return await self._judge(error)
        except Exception as error:  # the outermost guard of one job: it must not take the others along
            log.exception("job %s failed inside the worker", self.lease.job_id)
            return await self._judge(error)

    async def _judge(self, error: Exception) -> Outcome:
        """What a failure means for the job: whose fault it is decides whether it is counted and tried again."""
        if isinstance(error, StaleToken):
            return Outcome.LOST
        fault = error if isinstance(error, EngineError) else EngineBroken("its answer could not be read")
        try:
            if self.escalation is not None and await self.escalation.after(fault):
                return await self._handed_on(self.escalation)
        except StaleToken:
            return Outcome.LOST
        return await self._blame(error)

    async def _blame(self, error: Exception) -> Outcome:
        match error:
            case EngineRejected():
                return await self._end(Ending(succeeded=False, data=rejection(error)))
            case EngineBusy():
                delay_s = self.busy_s = max(error.retry_after_s, self.backoff.delay_s(1))
                busy = error_document(str(error), code="engine_busy")
                return await self._give_back(Return("busy", delay_s, busy), Outcome.BUSY)
            case EngineAborted():
                return await self._give_back(Return("drain", error=_stopped()), Outcome.HANDED_BACK)
            case EngineUnavailable():
                return await self._failed(error, Outcome.UNREACHABLE)
            case _:
                return await self._failed(error, Outcome.RETRY)

    async def _attempt(self) -> Outcome:
        lease = self.lease
        body = orjson.loads(lease.body)
        if lease.heir and self.heirs is not None:
            self.escalation = Escalation(lease, body, heirs=self.heirs, insist=self._insist)
            return await self._first_pass(self.escalation)
        call = _call(lease, body, stream=lease.stream)
        if not lease.stream:
            return await self._whole(call)
        return await self._stream(call)

    async def _whole(self, call: EngineCall) -> Outcome:
        final = Final(b"", None, None)
        async with aclosing(self.engine.generate(call)) as items:
            async for item in items:
                if isinstance(item, Final):
                    final = item
        return await self._finish(final, final.body)

    async def _stream(self, call: EngineCall) -> Outcome:
        """A job that is polled has its chunks put together as its result; a connection has had them already."""
        assembler = None if self.lease.attached else Assembler()
        self.appender.open(self.lease)
        try:
            final = await self._relay(call, assembler)
            await self.appender.flush(self.lease.job_id)
        finally:
            self.appender.close(self.lease.job_id)
        return await self._finish(final, assembler.whole(final.usage) if assembler else b"")

    async def _first_pass(self, escalation: Escalation) -> Outcome:
        """As `_whole` and `_stream`, but what is not good enough is handed on as long as nobody has seen it."""
        lease, guard = self.lease, escalation.guard
        if await escalation.begun():
            return await self._handed_on(escalation)
        call = _call(lease, guard.asked(), stream=guard.streams)
        self.appender.open(lease)
        try:
            final = await self._relay_guarded(call, escalation)
            await self.appender.flush(lease.job_id)
        finally:
            self.appender.close(lease.job_id)
        if escalation.why:
            return await self._handed_on(escalation)
        data = b"" if lease.stream and lease.attached else guard.whole(final)
        self.usage = final.usage
        return await self._end(replace(_success(final, data), confidence=guard.confidence))

    async def _relay_guarded(self, call: EngineCall, escalation: Escalation) -> Final:
        """What may be sent goes to the appender. Ends early once the job has been handed on."""
        final = Final(b"", None, None)
        async with aclosing(self.engine.generate(call)) as items:
            async for item in items:
                ready = await escalation.next(item)
                if isinstance(item, Final):
                    final = item
                else:
                    self.on_tokens(self.lease.job_id, item.count)
                for delta in ready if self.lease.stream else ():
                    self.appender.add(self.lease.job_id, delta.data, count=delta.count)
                if escalation.why:
                    break
        return final

    async def _handed_on(self, escalation: Escalation) -> Outcome:
        """The successor is queued: this job ends for it."""
        ending = escalation.ending()
        self.usage = escalation.usage
        try:
            outcome = await self._end(ending)
        except asyncio.CancelledError:
            await escalation.undo()
            raise
        if outcome is Outcome.LOST:
            await escalation.undo()
            return outcome
        return Outcome.ESCALATED

    async def _relay(self, call: EngineCall, assembler: Assembler | None) -> Final:
        """Every chunk to the appender, as it comes."""
        final = Final(b"", None, None)
        async with aclosing(self.engine.generate(call)) as items:
            async for item in items:
                if isinstance(item, Final):
                    final = item
                    continue
                self.appender.add(self.lease.job_id, item.data, count=item.count)
                self.on_tokens(self.lease.job_id, item.count)
                if assembler is not None:
                    assembler.feed(item.data)
        return final

    async def _finish(self, final: Final, data: bytes) -> Outcome:
        self.usage = final.usage
        return await self._end(_success(final, data))

    async def _end(self, ending: Ending) -> Outcome:
        try:
            await self._insist(lambda: self.consumer.finish(self.lease, ending))
        except StaleToken:
            return Outcome.LOST
        return Outcome.SUCCEEDED if ending.succeeded else Outcome.FAILED

    async def _failed(self, error: Exception, outcome: Outcome) -> Outcome:
        document = error_document(str(error) or type(error).__name__, code=_code(error))
        given = Return("error", self.backoff.delay_s(self.lease.attempt), document)
        return await self._give_back(given, outcome)

    async def _give_back(self, given: Return, outcome: Outcome) -> Outcome:
        try:
            again = await self._insist(lambda: self.consumer.release(self.lease, given))
        except StaleToken:
            return Outcome.LOST
        return outcome if again else Outcome.FAILED

    async def _insist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeats a write while Redis is away, for as long as the lease can be trusted. Raises StaleToken."""
        while True:
            try:
                return await write()
            except (RedisAway, QueueFull):
                if time.monotonic() > self.trusted_until(self.lease.job_id):
                    raise StaleToken(
                        f"the lease on {self.lease.job_id} ran out while Redis was away"
                    ) from None
                await asyncio.sleep(WRITE_RETRY_S)


def _call(lease: Lease, body: dict[str, Any], *, stream: bool) -> EngineCall:
    rank = int(lease.service_class)
    return EngineCall(
        lease.job_id, lease.endpoint, body, stream, rank, tenant=lease.tenant, trace=lease.trace
    )


def _stopped() -> bytes:
    """What the caller of an answer that had begun is told when its worker is drained."""
    return error_document("the worker was stopped while it ran this job", code="worker_stopped")


def _success(final: Final, data: bytes) -> Ending:
    usage = final.usage
    if usage is None:
        return Ending(succeeded=True, data=data)
    return Ending(
        succeeded=True,
        data=data,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        recounted=usage.recounted,
    )


def _code(error: Exception) -> str:
    """engine_unavailable, engine_timeout, engine_broken; worker_error for a fault of our own."""
    name = type(error).__name__
    return (
        "engine_" + name.removeprefix("Engine").lower() if isinstance(error, EngineError) else "worker_error"
    )
