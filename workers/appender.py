"""Sends chunks of all running jobs to Redis, coalesced: the first token of a job at once, the rest every `delay_s`.

One round trip is under way at a time, so chunks of a job stay in order. While Redis is away chunks are kept.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.consumer import Chunk, Consumer
from broker.errors import RedisAway
from broker.job import Lease

RETRY_S = 0.1


@dataclass(slots=True)
class _Outbox:
    lease: Lease
    seq: int = 0
    parts: list[bytes] = field(default_factory=list)
    sent: bool = False
    written: asyncio.Event = field(default_factory=asyncio.Event)


class Appender:
    """`on_stale(job_id)` is told when a job's token has become stale; what it still sends is dropped."""

    def __init__(self, consumer: Consumer, *, delay_s: float, on_stale: Callable[[str], None]) -> None:
        self._consumer = consumer
        self._delay_s = delay_s
        self._on_stale = on_stale
        self._boxes: dict[str, _Outbox] = {}
        self._pending: dict[str, _Outbox] = {}
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()

    def open(self, lease: Lease) -> None:
        self._boxes[lease.job_id] = _Outbox(lease)

    def close(self, job_id: str) -> None:
        """Forgets the job and whatever it had not sent."""
        box = self._boxes.pop(job_id, None)
        self._pending.pop(job_id, None)
        if box is not None:
            box.written.set()

    def add(self, job_id: str, data: bytes, *, count: int) -> None:
        """`count` payloads joined by newlines."""
        box = self._boxes[job_id]
        box.seq += count
        box.parts.append(data)
        box.written.clear()
        self._pending[job_id] = box
        if not box.sent:
            box.sent = True
            self._urgent.set()
        self._work.set()

    async def flush(self, job_id: str) -> None:
        """Returns when everything added for the job is in Redis, or the job was closed."""
        box = self._boxes.get(job_id)
        if box is not None and box.parts:
            self._urgent.set()
            await box.written.wait()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._work.wait()
            if not self._urgent.is_set():
                await self._nap()
            self._work.clear()
            self._urgent.clear()
            await self._send()

    async def _nap(self) -> None:
        try:
            async with asyncio.timeout(self._delay_s):
                await self._urgent.wait()
        except TimeoutError:
            pass

    async def _send(self) -> None:
        boxes, self._pending = list(self._pending.values()), {}
        counts = [len(box.parts) for box in boxes]
        chunks = [Chunk(box.lease.job_id, box.lease.token, box.seq, b"\n".join(box.parts)) for box in boxes]
        written = await self._write(chunks)
        for box, count, ok in zip(boxes, counts, written, strict=True):
            del box.parts[:count]
            if not box.parts:
                box.written.set()
            if not ok:
                self._on_stale(box.lease.job_id)

    async def _write(self, chunks: list[Chunk]) -> list[bool]:
        """Repeats the very same chunks until Redis answers: what was applied unseen must not come again with more."""
        while True:
            try:
                return await self._consumer.append(chunks)
            except RedisAway:
                await asyncio.sleep(RETRY_S)
