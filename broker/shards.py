"""A pool's queues, and which of them a new job goes to. Pure: whoever makes job ids asks here.

A *queue* is one hash slot of Redis: all that `keys.PoolKeys` names. A pool is one queue of its own name, or `shards` of
them, `name~0` to `name~(shards - 1)` (ADR 9).
"""

import itertools
import os
from collections.abc import Collection, Mapping

from broker.job import SHARD_MARK

MAX_SHARDS = 64


def queues_of(pool: str, shards: int) -> tuple[str, ...]:
    """Names of the queues of a pool that is configured so."""
    return (pool,) if shards <= 1 else tuple(f"{pool}{SHARD_MARK}{number}" for number in range(shards))


def jump_hash(key: int, buckets: int) -> int:
    """The bucket of a 64-bit key: one more bucket moves as few keys as possible, all of them there.

    Source: Lamping and Veach, A Fast, Minimal Memory, Consistent Hash Algorithm (2014), figure 1.
    """
    chosen, following = -1, 0
    while following < buckets:
        chosen = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((chosen + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return chosen


class Shards:
    """`counts`: shards by pool; a pool that is not in it has one queue."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._queues = {pool: queues_of(pool, shards) for pool, shards in counts.items() if shards > 1}
        self._turns = itertools.count(int.from_bytes(os.urandom(2)))

    def queues(self, pool: str) -> tuple[str, ...]:
        return self._queues.get(pool, (pool,))

    def is_split(self, pool: str) -> bool:
        return pool in self._queues

    def pick(self, pool: str, key: int | None = None, *, full: Collection[str] = ()) -> str:
        """The queue for a job. `key`: 64 bits that jobs have in common which are to meet in one queue; None: in turn.

        `full`: queues that are passed over, unless all are.
        """
        queues = self.queues(pool)
        queues = tuple(queue for queue in queues if queue not in full) or queues
        if len(queues) == 1:
            return queues[0]
        return queues[next(self._turns) % len(queues) if key is None else jump_hash(key, len(queues))]
