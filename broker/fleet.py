"""Who serves a pool: worker records as heartbeats leave them, and counters, read for the API, `top` and metrics."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import orjson

from broker.connection import Pipe
from broker.job import pool_of_queue
from broker.keys import POOLS, PoolKeys
from broker.script import Call, script
from broker.topology import tag_of

FORGET_S = 86_400
ANNOUNCE_S = 3600.0
OLDEST_OF = 16  # jobs of each set
LIVE = ("ready", "starting", "paused")  # states of workers that take jobs, or will


@dataclass(frozen=True, slots=True)
class LoadMeans:
    """Of a worker over some seconds. Shares from 0 to 1; `predicted_s`: predicted seconds in flight."""

    busy_share: float
    kv_share: float | None
    predicted_s: float


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker says about itself with every heartbeat. Capacity in slots (concurrent answers) as they are trusted now."""

    worker_id: str
    pool: str
    engine: str
    model: str
    slots: int
    busy_slots: int
    state: str  # starting, ready, paused, draining, unavailable
    pid: int
    host: str
    engine_url: str = ""
    embedded: bool = False
    started: float = 0.0
    claimed: int = 0
    kv_used_share: float | None = None
    kv_total_tokens: int | None = None
    reserved_slots: int = 0  # that batch work leaves free
    prefill_tokens: int = 0  # of prompts that its engine is reading
    prompt_tokens: int = 0  # of the jobs that it finished
    cached_tokens: int = 0  # of those, what its engine had in its cache
    home: str = ""  # the queue that it serves first
    predicted_s: float = 0.0  # of the whole runs of the jobs that it holds
    jobs: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # by class, the predicted seconds of each, longest first
    tpot_s: float | None = None  # lately: for each token of an answer after its first
    lately: LoadMeans | None = (
        None  # over the last ten seconds; who has been there for less than five tells none
    )
    minute: LoadMeans | None = None
    breaker: str = "closed"  # open, half-open: as the queue that was looked at judges it

    @property
    def prefix_hit_share(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def dump(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def load(cls, raw: bytes, *, breaker: bytes | None = None) -> "WorkerRecord":
        known = {name: value for name, value in orjson.loads(raw).items() if name in cls.__dataclass_fields__}
        known |= {name: LoadMeans(**known[name]) for name in ("lately", "minute") if known.get(name)}
        return cls(**known | {"breaker": (breaker or b"closed").decode()})


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
    shards: tuple["ShardView", ...] = ()  # of a pool that has more than one queue
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def ready_workers(self) -> list[WorkerRecord]:
        """Those that may be given jobs now."""
        return [worker for worker in self.workers if worker.state == "ready" and worker.breaker != "open"]

    @property
    def out(self) -> bool:
        """No worker may be given a job, now or as soon as it is up: none lives, or engines are away, or breakers open."""
        there = (w for w in self.workers if w.state in LIVE and w.breaker != "open")
        return not (self.paused or self.draining or any(there))

    @property
    def served(self) -> bool:
        """Whether any worker may claim from it, now or once its engine is up."""
        return any(worker.state in LIVE for worker in self.workers)

    @property
    def paused(self) -> bool:
        return bool(self.counters.get("paused"))

    @property
    def draining(self) -> bool:
        return bool(self.counters.get("draining"))

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.ready_workers)

    @property
    def prefix_hit_share(self) -> float | None:
        """Share of all prompt tokens that the engines had in their caches."""
        prompt = self.counters.get("tokens_in", 0.0)
        return self.counters.get("tokens_cached", 0.0) / prompt if prompt else None

    @property
    def mean_run_s(self) -> float | None:
        """Moving mean of the time from claim to end, seconds."""
        run_ms = self.counters.get("run_ms")
        return None if run_ms is None else run_ms / 1000


@dataclass(frozen=True, slots=True)
class ShardView:
    """One queue of several. `waiting`: jobs that are ready, of all classes."""

    queue: str
    waiting: int
    running: int


async def announce_pool(pipe: Pipe, queue: str) -> None:
    """Makes a pool's queue known to everybody who lists pools, until it has been unused for FORGET_S."""
    await _note_use(pipe, queue)
    await pipe.command("SADD", POOLS, queue)


async def _note_use(pipe: Pipe, queue: str) -> None:
    await pipe.command("SET", PoolKeys(queue).named("used"), "1", "EX", FORGET_S)


class Announcer:
    """Has workers find the jobs of this process also where their own configuration names no such queue."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._until: dict[str, float] = {}

    async def tell(self, calls: Sequence[Call]) -> None:
        """Of queues that `calls` write to: of each with its first, and now and then. Raises RedisAway, QueueFull."""
        now = asyncio.get_running_loop().time()
        for queue in {tag_of(call.keys[0]) for call in calls}:
            if self._until.get(queue, 0.0) <= now:
                await announce_pool(self._pipe, queue)
                self._until[queue] = now + ANNOUNCE_S


async def forget_pools(pipe: Pipe) -> int:
    """Drops queues that have had no worker and no job for FORGET_S, such as misspelt ones. Returns how many.

    Called now and then, more often than FORGET_S. A worker that comes back announces its queues again.
    """
    forgotten = 0
    for queue in await known_queues(pipe):
        view = await look(pipe, queue)
        if view.workers or sum(view.waiting) or view.delayed or view.running or view.dead:
            await _note_use(pipe, queue)
        elif not await pipe.command("EXISTS", PoolKeys(queue).named("used")):
            await pipe.command("SREM", POOLS, queue)
            forgotten += 1
    return forgotten


async def known_queues(pipe: Pipe) -> list[str]:
    return sorted(name.decode() for name in await pipe.command("SMEMBERS", POOLS))


async def known_pools(pipe: Pipe) -> list[str]:
    """Pools of which a queue has been announced."""
    return sorted({pool_of_queue(queue) for queue in await known_queues(pipe)})


async def look_at(pipe: Pipe, pool: str, *, queues: Sequence[str]) -> PoolView:
    """All queues of a pool as one. A worker of several of them is counted once, by what it says at home."""
    views = await asyncio.gather(*(look(pipe, queue) for queue in queues))
    return views[0] if len(views) == 1 and views[0].pool == pool else merged(pool, views)


async def look_pool(pipe: Pipe, pool: str) -> PoolView:
    """A pool by the queues that have been announced, for those who have no other list."""
    queues = [queue for queue in await known_queues(pipe) if pool_of_queue(queue) == pool]
    return await look_at(pipe, pool, queues=queues or [pool])


def merged(pool: str, views: Sequence[PoolView]) -> PoolView:
    """`views`: of single queues."""
    latest: dict[str, WorkerRecord] = {}
    for view in views:
        latest |= {w.worker_id: w for w in view.workers if w.home == view.pool or w.worker_id not in latest}
    counters: dict[str, float] = {}
    for name, value in (item for view in views for item in view.counters.items()):
        counters[name] = counters.get(name, 0.0) + value
    means = [view.counters["run_ms"] for view in views if "run_ms" in view.counters]
    if means:
        counters["run_ms"] = sum(means) / len(means)
    return PoolView(
        pool=pool,
        workers=list(latest.values()),
        waiting=[sum(view.waiting[service_class] for view in views) for service_class in range(4)],
        delayed=sum(view.delayed for view in views),
        running=sum(view.running for view in views),
        dead=sum(view.dead for view in views),
        promoted=sum(view.promoted for view in views),
        shards=tuple(ShardView(v.pool, sum(v.waiting) + v.promoted, v.running) for v in views),
        counters=counters,
    )


async def look(pipe: Pipe, queue: str) -> PoolView:
    """One queue. One round trip for the sets, one for the workers' records."""
    keys = PoolKeys(queue)
    sets = [*keys.all_ready, *(keys.named(name) for name in ("delayed", "leases", "dead")), *keys.all_aged]
    counts = [pipe.command("ZCARD", name) for name in sets]
    members = pipe.command("ZRANGE", keys.named("workers"), 0, 9999)
    flat = pipe.command("HGETALL", keys.named("stats"))
    *cards, names, stats = await asyncio.gather(*counts, members, flat)
    ids = [name.decode() for name in names]
    records, breakers = await asyncio.gather(
        asyncio.gather(*(pipe.command("HGET", keys.worker(i), "record") for i in ids)),
        asyncio.gather(*(pipe.command("HGET", keys.breaker(i), "state") for i in ids)),
    )
    return PoolView(
        pool=queue,
        workers=[WorkerRecord.load(r, breaker=b) for r, b in zip(records, breakers, strict=True) if r],
        waiting=cards[:4],
        delayed=cards[4],
        running=cards[5],
        dead=cards[6],
        promoted=sum(cards[7:]),
        counters={k.decode(): float(v) for k, v in zip(stats[::2], stats[1::2], strict=True)},
    )


def oldest(queue: str) -> Call:
    k = PoolKeys(queue)
    return Call(script("oldest"), (k.prefix, *k.all_ready, *k.all_aged), (OLDEST_OF,))


async def oldest_s(pipe: Pipe, queues: Sequence[str]) -> list[float | None]:
    """By class, how long jobs have waited that are next in any of the queues; None: none waits. Raises RedisAway."""
    found = await pipe.run_all([oldest(queue) for queue in queues])
    most = (max((ages[service_class] for ages in found), default=-1) for service_class in range(4))
    return [None if age < 0 else age / 1000 for age in most]
