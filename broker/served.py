"""The queues that one worker serves, and in which order it asks them for jobs. Used by `consumer.py` and the heartbeat.

Home comes first; another queue is asked when home gives nothing, before it for a P0 job that waits there, and every EVERY
rounds before it, so that no queue depends on the workers that are at home there. Queues of the pools that are no longer
configured are served for as long as they have jobs.
"""

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Sequence

from broker.connection import Pipe
from broker.errors import RedisAway
from broker.fleet import announce_pool, known_queues, look_at
from broker.job import pool_of_queue
from broker.keys import PoolKeys

EVERY = 8
REFRESH_S = 5.0


def home_first(queues: Sequence[str], home: str) -> tuple[str, ...]:
    """The same in the same cycle, so that workers of different homes turn to different queues first."""
    at = queues.index(home)
    return (*queues[at:], *queues[:at])


async def choose_home(pipe: Pipe, queues: Sequence[str], *, worker_id: str) -> str:
    """Where the fewest workers are at home; by chance of its id where there are several such. Raises RedisAway."""
    if len(queues) == 1:
        return queues[0]
    view = await look_at(pipe, pool_of_queue(queues[0]), queues=queues)
    at_home = Counter(worker.home for worker in view.workers)
    by_chance = queues[zlib.crc32(worker_id.encode()) % len(queues)]
    return min(home_first(queues, by_chance), key=lambda queue: at_home[queue])


class Served:
    """`configured`: never empty, home first. `queues` may be read from any thread."""

    def __init__(self, configured: Sequence[str]) -> None:
        self.home = configured[0]
        self.queues = tuple(configured)
        self._configured = tuple(configured)
        self._pools = frozenset(pool_of_queue(queue) for queue in configured)
        self._at = 0
        self._rounds = 0
        self._urgent_rounds = 0
        self._waits = 0
        self._reaps = 0

    def away(self, queue: str) -> int:
        """As `scripts.claim` wants it."""
        if queue == self.home:
            return 0
        return 1 if pool_of_queue(queue) == pool_of_queue(self.home) else 2

    def round(self, rang: str = "", urgent: str = "") -> tuple[str, ...]:
        """Whom to ask, in this order, until one gives something; home and one other.

        `rang`: the queue that ended the last wait. It is asked in any case, for its marker is taken: nobody else comes.
        `urgent`: one with a P0 job. It goes first, but EVERY-th time in a row, so that P0 jobs elsewhere starve no queue.
        """
        others = self.queues[1:]
        if not others:
            return (self.home,)
        self._urgent_rounds = (self._urgent_rounds + 1) % EVERY if urgent else 0
        if self._urgent_rounds:
            order = (urgent, rang or self.home, self.home, others[self._at % len(others)])
            return tuple(dict.fromkeys(order))
        if rang in others:
            self._at = others.index(rang)
            return rang, self.home
        self._rounds += 1
        if self._rounds % EVERY == 0:
            return others[self._rounds // EVERY % len(others)], self.home
        return self.home, others[self._at % len(others)]

    def bells(self) -> tuple[str, ...]:
        """In which order to listen, should several ring: home first, the others by turns."""
        others = self.queues[1:]
        if not others:
            return self.queues
        self._waits += 1
        return (self.home, *home_first(others, others[self._waits % len(others)]))

    def gave_nothing(self, queue: str) -> None:
        """The next round turns to the next one; a queue that gives is stayed with."""
        others = self.queues[1:]
        if others and queue == others[self._at % len(others)]:
            self._at += 1

    def to_reap(self) -> tuple[str, ...]:
        """Home each time, one of the others every other time."""
        self._reaps += 1
        others = self.queues[1:]
        if not others or self._reaps % 2:
            return (self.home,)
        return self.home, others[self._reaps // 2 % len(others)]

    async def join(self, pipe: Pipe) -> None:
        """Before the first claim. Raises RedisAway."""
        for queue in self._configured:
            await announce_pool(pipe, queue)
        await self.refresh(pipe)

    async def refresh(self, pipe: Pipe) -> None:
        """Finds queues of the same pools that others fill, or that were left behind. Raises RedisAway."""
        others = [queue for queue in await known_queues(pipe) if queue not in self._configured]
        mine = [queue for queue in others if pool_of_queue(queue) in self._pools]
        left = [queue for queue in mine if await has_jobs(pipe, queue)]
        self.queues = (*self._configured, *left)


async def keep_fresh(served: Served, pipe: Pipe) -> None:
    """Refreshes until cancelled. While Redis is away the queues stay as they are."""
    while True:
        with contextlib.suppress(RedisAway):
            await served.refresh(pipe)
        await asyncio.sleep(REFRESH_S)


async def has_jobs(pipe: Pipe, queue: str) -> bool:
    """Whether a job of the queue has not ended: until then it is in one of the two sets."""
    keys = PoolKeys(queue)
    return any([await pipe.command("ZCARD", keys.named(name)) for name in ("aging", "deadlines")])
