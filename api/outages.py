"""When nobody serves a pool: its requests go to its fallback, where its queued jobs are brought; and back again, a few at first.

A pool is out when no worker of it may be given a job: none lives, or all are without their engine, or their breakers are open.
Each process sees that for itself, within a second of the others.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from api.errors import no_worker
from api.snapshots import FleetCache
from broker.errors import BrokerError, RedisAway
from broker.fleet import PoolView
from broker.rescue import Rescuer
from broker.tenants import DEGRADE, FAIL, WAIT

log = logging.getLogger("headway.outages")
OUT_S = 3.0  # a pool that is out for less is waited for
RETURN_S = 10.0  # in which a pool that is back gets its share again
LEAST_SHARE = 0.05  # from the start of that
EVERY_S = 1.0
RESCUED_AT_ONCE = 50  # jobs of a queue in a second


@dataclass(slots=True)
class Outages:
    """What this process has seen of which pools, by a clock that it is given (seconds)."""

    _since: dict[str, float] = field(default_factory=dict)
    _back: dict[str, float] = field(default_factory=dict)
    _served: set[str] = field(
        default_factory=set
    )  # at some time: what comes up for the first time has no outage behind it

    def share(self, view: PoolView, *, now: float) -> float:
        """Of the pool's requests that go to it: 0 while it is out, and growing to 1 when it is back."""
        pool = view.pool
        if view.out:
            self._back.pop(pool, None)
            began = self._since.setdefault(pool, now)
            return 0.0 if now - began >= OUT_S else 1.0
        ended = self._since.pop(pool, None)
        if ended is not None and now - ended >= OUT_S and pool in self._served:
            self._back[pool] = now
        self._served.add(pool)
        grown = (now - self._back.get(pool, float("-inf"))) / RETURN_S
        if grown >= 1.0:
            self._back.pop(pool, None)
        return min(1.0, max(LEAST_SHARE, grown))


@dataclass(frozen=True, slots=True)
class Detour:
    """Where a request goes. `degraded`: the pool that it was meant for, if that is another. `fallback`: what it does if its pool
    goes out while it waits; "": the pool has no fallback."""

    pool: str
    degraded: str = ""
    fallback: str = ""


class Diversion:
    """One per process."""

    def __init__(self, fleet: FleetCache, *, chance: Callable[[], float] = random.random) -> None:
        self._fleet = fleet
        self._outages = Outages()
        self._chance = chance

    async def of(self, pool: str, *, wanted: str, routed: bool) -> Detour:
        """For a request that comes now. A route has chosen already. Raises ApiError if it would rather fail; RedisAway."""
        to = self.fallback_of(pool)
        if not to:
            return Detour(pool)
        if wanted == WAIT:
            return Detour(pool, fallback=WAIT)
        share = await self._share(pool)
        if wanted == FAIL and share == 0.0:
            raise no_worker(pool)
        if wanted == DEGRADE and not routed and self._chance() >= share and await self._takes(to):
            return Detour(to, degraded=pool)
        return Detour(pool, fallback=wanted)

    async def run(self, rescuer: Rescuer) -> None:
        """Rescues what waits in pools that are out, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))
            for model in self._fleet.config.models:
                try:
                    await self._rescue(model.pool, rescuer)
                except BrokerError as error:
                    log.debug("rescue of %s put off: %s", model.pool, error)

    async def _rescue(self, pool: str, rescuer: Rescuer) -> None:
        to = self.fallback_of(pool)
        if not to or await self._share(pool) > 0.0 or not await self._takes(to):
            return
        for queue in self._fleet.queues(pool):
            await rescuer.rescue(queue, to=to, shards=self._fleet.shards, most=RESCUED_AT_ONCE)

    def fallback_of(self, pool: str) -> str:
        """ "": it has none."""
        model = self._fleet.model_of(pool)
        return (model.fallback if model else None) or ""

    async def _share(self, pool: str) -> float:
        view = (await self._fleet.look(pool)).view
        return self._outages.share(view, now=asyncio.get_running_loop().time())

    async def _takes(self, pool: str) -> bool:
        """Whether another pool's requests may come there."""
        try:
            view = (await self._fleet.look(pool)).view
        except RedisAway:
            return False
        return not (view.out or view.draining or view.paused)
