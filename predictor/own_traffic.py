"""Finished jobs as rows to learn from: read from Redis, put into the order of time, each with the past that it had.

Workers report features without a past, for a job's own end must not be in it; here it is built up again, row by row.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from broker import fleet, learning
from broker.connection import Pipe
from broker.job import pool_of_queue
from broker.learning import EVERYBODY, KEPT, Entry, Outcome
from predictor.features import INDEX, VERSION, with_past
from predictor.history import History, Past

LAG = 8  # jobs that ended so shortly before another that it had been forecast already
CALLED = "tool_calls"  # a finish reason


@dataclass(frozen=True, slots=True)
class Seen:
    """An outcome of a pool, and its time in the stream: milliseconds and a number."""

    pool: str
    at: tuple[int, int]
    outcome: Outcome


async def collect(pipe: Pipe, *, most: int) -> list[Seen]:
    """The newest outcomes of all pools, oldest of them first. Raises RedisAway."""
    pools = dict.fromkeys(pool_of_queue(queue) for queue in await fleet.known_queues(pipe))
    found = [seen for pool in pools for seen in _seen(pool, await learning.read_all(pipe, pool, most=most))]
    found.sort(key=lambda seen: seen.at)
    return found[-most:]


def _seen(pool: str, entries: Iterable[Entry]) -> list[Seen]:
    found = []
    for entry in entries:
        milliseconds, _, number = entry.at.partition("-")
        if entry.outcome.features_version == VERSION and len(entry.outcome.features) == len(INDEX):
            found.append(Seen(pool, (int(milliseconds), int(number)), entry.outcome))
    return found


@dataclass(slots=True)
class _Pasts:
    """Of all pools, LAG jobs behind."""

    ended: dict[tuple[str, str], deque[int]] = field(default_factory=dict)
    coming: deque[Seen] = field(default_factory=deque)

    def before(self, seen: Seen) -> Past:
        mine = self.ended.get((seen.pool, seen.outcome.past_key), ())
        return Past(History.of(mine), History.of(self.ended.get((seen.pool, EVERYBODY), ())))

    def add(self, seen: Seen) -> None:
        self.coming.append(seen)
        if len(self.coming) > LAG:
            ended = self.coming.popleft()
            for key in (ended.outcome.past_key, EVERYBODY):
                outputs = self.ended.setdefault((ended.pool, key), deque(maxlen=KEPT))
                outputs.append(ended.outcome.output_tokens)


def rows(found: Sequence[Seen]) -> list[bytes]:
    """JSON lines as `predictor/train/rows.py` reads them. `found`: in the order of time."""
    pasts, lines = _Pasts(), list[bytes]()
    for seen in found:
        outcome = seen.outcome
        values = with_past(outcome.features, pasts.before(seen))
        offered = outcome.features[INDEX["tools"]] > 0
        row = {
            "features": values,
            "features_version": outcome.features_version,
            "output_tokens": outcome.output_tokens,
            "tool_called": outcome.ended == CALLED if offered else None,
            "prompt_type": outcome.prompt_type,
        }
        lines.append(orjson.dumps(row))
        pasts.add(seen)
    return lines


def write_rows(path: Path, found: Sequence[Seen]) -> None:
    """Raises OSError."""
    path.write_bytes(b"".join(line + b"\n" for line in rows(found)))
