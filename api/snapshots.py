"""What the API knows of the fleet, at most a second old: which models there are, who serves them, how many jobs wait.

Requests read it without a round trip; concurrent refreshes are one. While Redis is away the last picture stands in
for `STALE_S`, so that a restart of Redis is bridged by the producer's own patience.
"""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker import fleet
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.errors import RedisAway, UnknownPool
from broker.fleet import PoolView

MAX_AGE_S = 1.0
STALE_S = 10.0
DRAIN_MEAN_S = 15.0  # time constant of the moving mean
NAMED_MODELS = 20  # in a message
LIVE = ("ready", "starting")


@dataclass(slots=True)
class Snapshot:
    """`submitted`: jobs this process has sent to the pool since the look. `drain_per_s`: jobs that end, moving mean."""

    view: PoolView
    at: float
    submitted: int = 0
    drain_per_s: float = 0.0

    @property
    def queued(self) -> int:
        return sum(self.view.waiting) + self.view.promoted + self.view.delayed + self.submitted

    @property
    def ended(self) -> float:
        """Jobs that have ended since the pool's counters began."""
        return sum(
            self.view.counters.get(f"{status}:{service_class}", 0.0)
            for status in ("succeeded", "failed", "cancelled", "expired")
            for service_class in range(4)
        )

    def wait_s(self, ahead: int) -> float | None:
        """Until a job with so many before it starts, at the measured rate; None if nothing has ended lately."""
        if ahead == 0:
            return 0.0
        return ahead / self.drain_per_s if self.drain_per_s > 0 else None

    @property
    def served(self) -> bool:
        """Whether any worker may claim from the pool, now or once its engine is up."""
        return any(worker.state in LIVE for worker in self.view.workers)


@dataclass(slots=True)
class FleetCache:
    """One per process."""

    pipe: Pipe
    config: Config
    _names: dict[str, str] = field(default_factory=dict)
    _announced: list[str] = field(default_factory=list)
    _announced_at: float = float("-inf")
    _snapshots: dict[str, Snapshot] = field(default_factory=dict)
    _looking: dict[str, "asyncio.Task[Snapshot]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = {
            name: model.pool for model in self.config.models for name in (model.pool, *model.aliases)
        }

    async def resolve(self, model: str) -> str:
        """The pool that serves a model name. Raises UnknownPool naming the models there are."""
        pool = self._names.get(model)
        if pool is not None:
            return pool
        if model in await self.pools():
            return model
        names = sorted({*self._names, *self._announced})
        shown = ", ".join(names[:NAMED_MODELS]) + (" …" if len(names) > NAMED_MODELS else "")
        raise UnknownPool(f"there is no model {model[:80]!r}; there are: {shown}")

    async def pools(self) -> list[str]:
        """Configured pools first, then those that workers have announced."""
        now = asyncio.get_running_loop().time()
        if now - self._announced_at > MAX_AGE_S:
            try:
                self._announced = await fleet.known_pools(self.pipe)
            except RedisAway:
                if now - self._announced_at > STALE_S:
                    raise
            else:
                self._announced_at = now
        return self.seen_pools()

    def seen_pools(self) -> list[str]:
        """As `pools`, as far as known without asking."""
        configured = [model.pool for model in self.config.models]
        return [*configured, *(pool for pool in self._announced if pool not in configured)]

    def model_of(self, pool: str) -> ModelConfig | None:
        return next((model for model in self.config.models if model.pool == pool), None)

    async def look(self, pool: str, *, max_age_s: float = MAX_AGE_S) -> Snapshot:
        """Raises RedisAway."""
        now = asyncio.get_running_loop().time()
        known = self._snapshots.get(pool)
        if known is not None and now - known.at <= max_age_s:
            return known
        looking = self._looking.get(pool)
        if looking is None:
            looking = self._looking[pool] = asyncio.create_task(self._refresh(pool))
            looking.add_done_callback(lambda _: self._looking.pop(pool, None))
        try:
            return await asyncio.shield(looking)
        except RedisAway:
            if known is None or now - known.at > STALE_S:
                raise
            return known

    async def views(
        self, pools: Iterable[str] | None = None, *, max_age_s: float = MAX_AGE_S
    ) -> list[PoolView]:
        wanted = await self.pools() if pools is None else pools
        snapshots = await asyncio.gather(*(self.look(pool, max_age_s=max_age_s) for pool in wanted))
        return [snapshot.view for snapshot in snapshots]

    async def _refresh(self, pool: str) -> Snapshot:
        at = asyncio.get_running_loop().time()
        before, snapshot = self._snapshots.get(pool), Snapshot(await fleet.look(self.pipe, pool), at)
        if before is not None and at > before.at:
            rate = max(0.0, snapshot.ended - before.ended) / (at - before.at)
            weight = 1 - math.exp((before.at - at) / DRAIN_MEAN_S)
            snapshot.drain_per_s = before.drain_per_s + weight * (rate - before.drain_per_s)
        self._snapshots[pool] = snapshot
        return snapshot
