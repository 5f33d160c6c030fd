"""What operators wish of pools and workers: pause, drain, resume. Kept in Redis for as long as the pool or worker lives.

A pool's wish is a flag in the counters of each of its queues: `paused` stops claims (claim.lua), `draining` stops
submissions (the API). A worker's is a field of its record, which its heartbeat reads (renew.lua).
"""

import asyncio
from collections.abc import Sequence
from enum import StrEnum

from broker import scripts
from broker.connection import Pipe
from broker.errors import UnknownWorker
from broker.keys import PoolKeys

DISMISSED = 10  # exit code of a worker that was drained on purpose: nobody shall start it again


class Wish(StrEnum):
    """`RESUME` takes back the others."""

    PAUSE = "pause"
    DRAIN = "drain"
    RESUME = "resume"


async def steer_pool(pipe: Pipe, queues: Sequence[str], *, wish: Wish) -> None:
    """`queues`: all of the pool. Pause: nothing is claimed. Drain: nothing is accepted, and what waits is served."""
    await asyncio.gather(*(_steer_queue(pipe, PoolKeys(queue), wish=wish) for queue in queues))


async def _steer_queue(pipe: Pipe, keys: PoolKeys, *, wish: Wish) -> None:
    stats = keys.named("stats")
    if wish is Wish.PAUSE:
        await pipe.command("HSET", stats, "paused", 1)
        return
    if wish is Wish.DRAIN:
        await pipe.command("HSET", stats, "draining", 1)
    await pipe.command("HDEL", stats, "paused", *["draining"] * (wish is Wish.RESUME))
    await pipe.command("ZADD", keys.named("marker"), 0, "work")  # wakes a worker


async def steer_worker(pipe: Pipe, queues: Sequence[str], *, worker_id: str, wish: Wish) -> None:
    """`queues`: those of a pool that it serves. Raises UnknownWorker."""
    noted = "" if wish is Wish.RESUME else wish.value
    found = await pipe.run_all([scripts.steer(queue, worker_id, wish=noted) for queue in queues])
    if not any(found):
        raise UnknownWorker(f"no worker {worker_id} serves this pool (or it has just left); see /v1/fleet")
