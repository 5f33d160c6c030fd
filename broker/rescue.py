"""Jobs of a pool that nobody serves any more are handed on to the pool that headway.yaml names as its fallback.

A rescuer claims them as a worker would, queues a successor (heirs.py, ADR 10) and ends them for it: so a job is never in two
places, and one whose rescuer dies comes back when its lease runs out. It claims only jobs that may be rescued. The successor's
id follows from the job's, so that who tries again makes no second one.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace

import orjson

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import StaleToken
from broker.heirs import Heirs, Plan
from broker.job import Lease, derived_job_id, pool_of, queue_of
from broker.keys import PoolKeys
from broker.policy import Asking, Limits, Room
from broker.scripts import Ending, Return
from broker.shards import Shards

log = logging.getLogger("headway.rescue")
POOL_OUT = "pool_out"  # why the job was handed on
EVERY_MS = 700
FULL_S = 1.0  # until a job that nobody would take is looked at again


def degraded_text(route: str, *, pool: str) -> str:
    """What the job's record says of a job that was meant for `pool`."""
    return f"{route} degraded:{pool}"


class Rescuer:
    """One per process. `weight_of`: a tenant's share."""

    def __init__(
        self, pipe: Pipe, url: str, *, heirs: Heirs, asking: Asking, weight_of: Callable[[str], float]
    ) -> None:
        self._pipe = pipe
        self._url = url
        self._heirs = heirs
        self._asking = replace(asking, rescues=True)
        self._weight_of = weight_of
        self._consumers: dict[str, Consumer] = {}

    async def rescue(self, queue: str, *, to: str, shards: Shards, most: int) -> int:
        """Hands on as many jobs of the queue to the pool `to`; nothing if another process has just done so. Raises RedisAway, QueueFull."""
        turn = await self._pipe.command("SET", PoolKeys(queue).named("rescued"), 1, "PX", EVERY_MS, "NX")
        if turn is None:
            return 0
        consumer = self._consumer(queue)
        moved = 0
        for lease in (await consumer.claim(Room(most))).leases:
            moved += await self._hand_on(
                lease, consumer=consumer, heir=rescue_id(lease.job_id, to, shards=shards)
            )
        if moved:
            await self._pipe.command("HINCRBY", PoolKeys(queue).named("stats"), "rescued", moved)
            log.warning("%d jobs of %s go to %s, as nobody serves it", moved, queue, to)
        return moved

    async def _hand_on(self, lease: Lease, *, consumer: Consumer, heir: str) -> bool:
        plan = Plan(weight=self._weight_of(lease.tenant))
        lease = replace(lease, heir=heir, plan=str(plan))
        key = PoolKeys(queue_of(lease.job_id)).job(lease.job_id)
        route = (await self._pipe.command("HGET", key, "route") or b"").decode()
        mark = degraded_text(route or pool_of(heir), pool=pool_of(lease.job_id))
        try:
            await self._pipe.command("HSET", key, "route", mark)  # which its successor takes over
            if await self._heirs.submit(lease, orjson.loads(lease.body), in_time=False):
                await consumer.finish(lease, Ending(succeeded=False, data=b"", heir=heir, why=POOL_OUT))
                return True
            await self._pipe.command("HSET", key, "route", route)
            await consumer.release(lease, Return("busy", FULL_S))
        except StaleToken:  # it was cancelled meanwhile
            await self._heirs.undo(lease)
        return False

    def _consumer(self, queue: str) -> Consumer:
        known = self._consumers.get(queue)
        if known is None:
            limits = Limits(lease_s=self._asking.lease_s)
            known = Consumer(self._pipe, self._url, pool=queue, asking=self._asking, limits=limits)
            self._consumers[queue] = known
        return known


def rescue_id(job_id: str, pool: str, *, shards: Shards) -> str:
    """Of the successor. Not the id that it would have after an escalation: that may be taken."""
    seed = int.from_bytes(hashlib.sha256(f"rescue {job_id}".encode()).digest())
    return derived_job_id(shards.pick(pool, seed & 0xFFFFFFFFFFFFFFFF), seed=seed)
