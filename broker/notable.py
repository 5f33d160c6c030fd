"""Jobs that somebody will ask about: those that people waited for longest in each minute, and those that failed. Ids and
figures, never text. Written by workers beside their books, and by the reaper (`_note.lua`) for those that died, for the live page and `headway top`; a lost entry hurts nobody.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import orjson

from broker.connection import Pipe
from broker.keys import PoolKeys
from broker.policy import DAY_S
from broker.script import ms

SLOW_KEPT = 3  # of a minute and a queue
FAILED_KEPT = 20  # of a queue; `_note.lua` has it too
MINUTES = 10  # that are looked at, and how long a minute's are kept
FAILED_S = DAY_S


@dataclass(frozen=True, slots=True)
class Notable:
    """`service_class`: P0 to P3; `wait_s`: until its (last) claim; `first_s`: until its first token, or its end
    where it came as a whole; `ended`: seconds since the epoch (the worker's clock)."""

    job_id: str
    service_class: str
    worker: str
    outcome: str
    wait_s: float
    first_s: float
    total_s: float
    ended: float

    def dump(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def load(cls, raw: bytes) -> "Notable":
        known = orjson.loads(raw)
        return cls(**{name: known[name] for name in cls.__dataclass_fields__})


def slowest(jobs: Iterable[Notable], *, most: int) -> list[Notable]:
    """By how long somebody waited for a first token, longest first."""
    return sorted(jobs, key=lambda job: job.first_s, reverse=True)[:most]


async def note_slow(pipe: Pipe, jobs: Sequence[Notable], *, queue: str) -> None:
    """Keeps those that are among the slowest of this minute. Raises RedisAway, QueueFull."""
    key = PoolKeys(queue).slow(_minute())
    words = [word for job in jobs for word in (round(job.first_s * 1000), job.dump())]
    await pipe.command("ZADD", key, *words)
    await asyncio.gather(
        pipe.command("ZREMRANGEBYRANK", key, 0, -SLOW_KEPT - 1),
        pipe.command("PEXPIRE", key, ms((MINUTES + 1) * 60.0)),
    )


async def note_failed(pipe: Pipe, jobs: Sequence[Notable], *, queue: str) -> None:
    """Keeps the newest. Raises RedisAway, QueueFull."""
    key = PoolKeys(queue).named("failed")
    await pipe.command("LPUSH", key, *(job.dump() for job in jobs))
    await asyncio.gather(
        pipe.command("LTRIM", key, 0, FAILED_KEPT - 1), pipe.command("PEXPIRE", key, ms(FAILED_S))
    )


async def recent(pipe: Pipe, queues: Sequence[str], *, most: int) -> tuple[list[Notable], list[Notable]]:
    """The slowest of the last MINUTES minutes, slowest first; and those that failed, newest first. Raises RedisAway."""
    now = _minute()
    minutes = range(now - MINUTES + 1, now + 2)  # another clock may be ahead
    slow = (pipe.command("ZREVRANGE", PoolKeys(q).slow(n), 0, SLOW_KEPT - 1) for q in queues for n in minutes)
    failed = (pipe.command("LRANGE", PoolKeys(q).named("failed"), 0, FAILED_KEPT - 1) for q in queues)
    slow_found, failed_found = await asyncio.gather(asyncio.gather(*slow), asyncio.gather(*failed))
    newest = sorted(_loaded(failed_found), key=lambda job: job.ended, reverse=True)
    return slowest(_loaded(slow_found), most=most), newest[:most]


def _loaded(found: Iterable[Sequence[bytes]]) -> list[Notable]:
    return [Notable.load(raw) for some in found for raw in some]


def _minute() -> int:
    return int(time.time() // 60)
