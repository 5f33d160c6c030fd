"""Who serves a pool: worker records as heartbeats leave them, and counters, read for the API, `top` and metrics."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import orjson

from broker.connection import Pipe
from broker.keys import PoolKeys

POOLS = "hw:pools"
FORGET_S = 86_400


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker says about itself with every heartbeat. Capacity in slots (concurrent requests)."""

    worker_id: str
    pool: str
    engine: str
    model: str
    slots: int
    busy_slots: int
    state: str  # starting, ready, draining, unavailable
    pid: int
    host: str
    engine_url: str = ""
    embedded: bool = False
    started: float = 0.0
    claimed: int = 0
    kv_used_share: float | None = None

    def dump(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def load(cls, raw: bytes) -> "WorkerRecord":
        known = {name: value for name, value in orjson.loads(raw).items() if name in cls.__dataclass_fields__}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool at one moment. `waiting[c]`: ready jobs of class c. `counters`: see docs/architecture.md."""

    pool: str
    workers: list[WorkerRecord]
    waiting: list[int]
    delayed: int
    running: int
    dead: int
    promoted: int = 0  # waiting above their class's level, and not in `waiting`
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def ready_workers(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers if worker.state == "ready"]

    @property
    def paused(self) -> bool:
        return bool(self.counters.get("paused"))

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.ready_workers)

    @property
    def mean_run_s(self) -> float | None:
        """Moving mean of the time from claim to end, seconds."""
        run_ms = self.counters.get("run_ms")
        return None if run_ms is None else run_ms / 1000


async def announce_pool(pipe: Pipe, pool: str) -> None:
    """Makes the pool known to everybody who lists pools, until it has been unused for FORGET_S."""
    await _note_use(pipe, pool)
    await pipe.command("SADD", POOLS, pool)


async def _note_use(pipe: Pipe, pool: str) -> None:
    await pipe.command("SET", PoolKeys(pool).named("used"), "1", "EX", FORGET_S)


async def forget_pools(pipe: Pipe) -> int:
    """Drops pools that have had no worker and no job for FORGET_S, such as misspelt ones. Returns how many.

    Called now and then, more often than FORGET_S. A worker that comes back announces its pool again.
    """
    forgotten = 0
    for pool in await known_pools(pipe):
        view = await look(pipe, pool)
        if view.workers or sum(view.waiting) or view.delayed or view.running or view.dead:
            await _note_use(pipe, pool)
        elif not await pipe.command("EXISTS", PoolKeys(pool).named("used")):
            await pipe.command("SREM", POOLS, pool)
            forgotten += 1
    return forgotten


async def known_pools(pipe: Pipe) -> list[str]:
    return sorted(name.decode() for name in await pipe.command("SMEMBERS", POOLS))


async def look(pipe: Pipe, pool: str) -> PoolView:
    """One round trip for the sets, one for the workers' records."""
    keys = PoolKeys(pool)
    others = ("delayed", "leases", "dead", "aged:0", "aged:1", "aged:2")
    sets = [*keys.all_ready, *(keys.named(name) for name in others)]
    counts = [pipe.command("ZCARD", name) for name in sets]
    ids = pipe.command("ZRANGE", keys.named("workers"), 0, 9999)
    flat = pipe.command("HGETALL", keys.named("stats"))
    *cards, names, stats = await asyncio.gather(*counts, ids, flat)
    records = await asyncio.gather(*(pipe.command("HGET", keys.worker(n.decode()), "record") for n in names))
    return PoolView(
        pool=pool,
        workers=[WorkerRecord.load(raw) for raw in records if raw],
        waiting=cards[:4],
        delayed=cards[4],
        running=cards[5],
        dead=cards[6],
        promoted=sum(cards[7:]),
        counters={k.decode(): float(v) for k, v in zip(stats[::2], stats[1::2], strict=True)},
    )
