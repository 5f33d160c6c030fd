"""What the API knows of the fleet, at most a second old: which models there are, who serves them, how many jobs wait.

Requests read it without a round trip; concurrent refreshes are one. While Redis is away the last picture stands in
for `STALE_S`, so that a restart of Redis is bridged by the producer's own patience.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from api.drain import Drain, queued, queued_s
from broker import fleet
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.errors import LimitReached, RedisAway, UnknownPool
from broker.fleet import PoolView
from broker.job import Ahead, ServiceClass, pool_of_queue
from broker.shards import Shards

MAX_AGE_S = 1.0
STALE_S = 10.0
ROOM_AFTER = 0.95  # a refused caller comes back when what waits is down to this share of the limit
FULL_S = 5.0  # so long new jobs go to other shards than one that was full
BACK_S = 2.0  # after Redis was away, until workers whose records had expired must have beaten
UNSERVED_S = 30.0  # until it comes back if nobody serves the pool
NAMED_MODELS = 20  # in a message


@dataclass(slots=True)
class Snapshot:
    """The pool at one moment, and how fast its queue has been emptying."""

    view: PoolView
    at: float
    drain: Drain = field(default_factory=Drain)

    @property
    def run_s_per_s(self) -> float | None:
        """Predicted seconds that are claimed per second when something waits; None if that has not been measured."""
        return self.drain.run_s_per_s(self.view.slots)

    def start_s(self, ahead: Ahead | None, *, queues: int = 1) -> float | None:
        """Until a job is claimed that has so much before it in its queue, one of `queues`; None if nobody knows.

        Where nothing was measured a slot is taken to work off a predicted second per second.
        """
        view = self.view
        if ahead is None or not view.slots or view.paused:
            return None
        busy = sum(worker.busy_slots for worker in view.ready_workers)
        free = view.slots - max(busy, view.running)  # a heartbeat may be older than the last claims
        if ahead.jobs * queues < free:
            return 0.0
        next_slot_s = (view.mean_run_s or 0.0) / view.slots
        return round(ahead.run_s * queues / (self.run_s_per_s or view.slots) + next_slot_s, 3)

    def _mean_s(self, service_class: ServiceClass | None) -> float:
        """How long a job takes: as jobs have, else as those that wait are predicted to."""
        if self.view.mean_run_s:
            return self.view.mean_run_s
        classes = list(ServiceClass) if service_class is None else [service_class]
        jobs = sum(queued(self.view, c) for c in classes)
        return sum(queued_s(self.view, c) for c in classes) / jobs if jobs else 1.0

    def room_in_s(self, full: LimitReached, *, queues: int = 1) -> float:
        """Until the queue is down to `ROOM_AFTER` of the limit that it met, at the rate at which that has been going."""
        view = self.view
        own = ServiceClass[full.service_class] if full.service_class else None
        rate = self.drain.jobs_per_s if full.unit == "jobs" else self.drain.run_s_per_s
        per_s = rate(view.slots, own) or rate(view.slots)
        if per_s is None:
            per_s = view.slots / (self._mean_s(own) if full.unit == "jobs" else 1.0)
        excess = max(full.waiting - ROOM_AFTER * full.most, 1.0)
        return excess * queues / per_s if per_s else UNSERVED_S


@dataclass(slots=True)
class FleetCache:
    """One per process. `shards` says which queue a new job goes to."""

    pipe: Pipe
    config: Config
    shards: Shards = field(init=False)
    _names: dict[str, str] = field(default_factory=dict)
    _announced: list[str] = field(default_factory=list)  # queues
    _announced_at: float = float("-inf")
    _away_at: float = float("-inf")  # when Redis was last seen to be
    _full: dict[str, float] = field(default_factory=dict)  # shards that have refused a job, until when
    _snapshots: dict[str, Snapshot] = field(default_factory=dict)
    _looking: dict[str, "asyncio.Task[Snapshot]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.adopt(self.config)

    def adopt(self, config: Config) -> None:
        """Takes another configuration."""
        self.config, self.shards = config, config.shards
        self._names = {
            name: model.pool for model in self.config.models for name in (model.pool, *model.aliases)
        }

    def note_full(self, queue: str) -> bool:
        """Has jobs pass over a shard that has refused one. Whether another shard may take it."""
        now = asyncio.get_running_loop().time()
        self._full = {name: until for name, until in self._full.items() if until > now}
        queues = self.shards.queues(pool_of_queue(queue))
        if queue in queues:
            self._full[queue] = now + FULL_S
        return len(queues) > 1 and not all(each in self._full for each in queues)

    def pick(self, pool: str, key: int | None) -> str:
        """The queue for a new job: as `Shards.pick`, of those that are not full as far as known."""
        now = asyncio.get_running_loop().time()
        return self.shards.pick(pool, key, full=[name for name, until in self._full.items() if until > now])

    async def resolve(self, model: str) -> str:
        """The pool that serves a model name. Raises UnknownPool naming the models there are."""
        pool = self._names.get(model)
        if pool is not None:
            return pool
        if model in await self.pools():
            return model
        names = sorted({*self._names, *self.seen_pools(), *(route.name for route in self.config.routes)})
        shown = ", ".join(names[:NAMED_MODELS]) + (" …" if len(names) > NAMED_MODELS else "")
        hint = "" if self.config.routes else "; no route is declared (`routes` in headway.yaml)"
        raise UnknownPool(f"there is no model {model[:80]!r}; there are: {shown}{hint}")

    async def pools(self) -> list[str]:
        """Configured pools first, then those that workers have announced."""
        now = asyncio.get_running_loop().time()
        if now - self._announced_at > MAX_AGE_S:
            try:
                self._announced = await fleet.known_queues(self.pipe)
            except RedisAway:
                self._away_at = now
                if now - self._announced_at > STALE_S:
                    raise
            else:
                self._announced_at = now
        return self.seen_pools()

    def seen_pools(self) -> list[str]:
        """As `pools`, as far as known without asking."""
        configured = [model.pool for model in self.config.models]
        return list(dict.fromkeys([*configured, *map(pool_of_queue, self._announced)]))

    def queues(self, pool: str) -> list[str]:
        """Those that are configured, then those that hold jobs from other times, as far as known without asking."""
        known = [queue for queue in self._announced if pool_of_queue(queue) == pool]
        if pool not in self._names and known:
            return known
        return list(dict.fromkeys([*self.shards.queues(pool), *known]))

    def seen_queues(self) -> list[str]:
        """Of all pools, as far as known without asking."""
        return [queue for pool in self.seen_pools() for queue in self.queues(pool)]

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
            self._away_at = asyncio.get_running_loop().time()
            if known is None or now - known.at > STALE_S:
                raise
            return known

    @property
    def was_away(self) -> bool:
        """Redis, a moment ago: that no worker is known says nothing."""
        return asyncio.get_running_loop().time() - self._away_at < BACK_S

    async def views(
        self, pools: Iterable[str] | None = None, *, max_age_s: float = MAX_AGE_S
    ) -> list[PoolView]:
        wanted = await self.pools() if pools is None else pools
        snapshots = await asyncio.gather(*(self.look(pool, max_age_s=max_age_s) for pool in wanted))
        return [snapshot.view for snapshot in snapshots]

    async def _refresh(self, pool: str) -> Snapshot:
        at = asyncio.get_running_loop().time()
        await self.pools()
        view = await fleet.look_at(self.pipe, pool, queues=self.queues(pool))
        before, snapshot = self._snapshots.get(pool), Snapshot(view, at)
        if before is not None and at > before.at:
            snapshot.drain = before.drain.after(before.view, view, dt_s=at - before.at)
        self._snapshots[pool] = snapshot
        return snapshot
