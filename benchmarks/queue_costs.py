"""What the queue costs by itself: a claim at any depth, memory, Redis' CPU, idle workers, a job's way to a worker.

Each measure has a redis-server of its own. Used by `queueing.py`.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from figures import Figure
from own_redis import own_redis

from broker import scripts
from broker.connection import Pipe
from broker.consumer import MAX_BLOCK_S, Consumer
from broker.job import Forecast, Lease, ServiceClass, Submission, new_job_id
from broker.policy import Asking, Limits, Room
from broker.producer import Producer
from broker.reaper import reap_forever
from broker.scripts import Ending
from broker.served import Served, home_first, keep_fresh
from broker.shards import queues_of
from workers.heartbeat import Heartbeat

POOL = "bench"
PAYLOAD_BYTES = 512
LIMITS = Limits(lease_s=3600.0)  # nothing is taken away in the middle of a measure
DONE = Ending(succeeded=True, data=b"")
TOP_LEVEL = ("evalsha", "bzpopmin", "smembers")  # what a waiting worker sends; its scripts call others


def job(payload_bytes: int = PAYLOAD_BYTES, *, queue: str = POOL) -> Submission:
    forecast, body = Forecast(prompt_tokens=100, output_tokens=100, run_s=1.0), b"x" * payload_bytes
    return Submission(
        new_job_id(queue),
        ServiceClass.P2,
        "/v1/completions",
        body,
        forecast,
        deadline_s=86_400.0,
        retain_s=0.0,
    )


@dataclass(slots=True)
class Bench:
    """A fresh Redis and the broker's ends of it."""

    url: str
    pipe: Pipe
    producer: Producer
    consumers: list[Consumer] = field(default_factory=list)

    def consumer(self, name: str = "w", *, pool: str | Served = POOL) -> Consumer:
        asking = Asking(name, LIMITS.lease_s)
        self.consumers.append(Consumer(self.pipe, self.url, pool=pool, asking=asking, limits=LIMITS))
        return self.consumers[-1]

    async def fill(self, n: int, payload_bytes: int = PAYLOAD_BYTES) -> None:
        for at in range(0, n, 1000):
            await self.producer.submit_bulk([job(payload_bytes) for _ in range(min(1000, n - at))])

    async def info(self, section: str) -> dict[str, str]:
        text: bytes = await self.pipe.command("INFO", section)
        return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)

    async def cpu_s(self) -> float:
        facts = await self.info("cpu")
        return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])

    async def memory_bytes(self) -> int:
        return int((await self.info("memory"))["used_memory"])

    async def commands(self) -> int:
        """Commands that clients have sent, of those that workers send."""
        stats = await self.info("commandstats")
        calls = [stats.get(f"cmdstat_{name}", "calls=0,").split(",")[0] for name in TOP_LEVEL]
        return sum(int(text.removeprefix("calls=")) for text in calls)


@asynccontextmanager
async def bench(*, aof: bool = True) -> AsyncIterator[Bench]:
    with own_redis(aof=aof) as url:
        pipe = Pipe(url)
        this = Bench(url, pipe, Producer(pipe))
        try:
            yield this
        finally:
            await asyncio.gather(*(consumer.close() for consumer in this.consumers))
            await pipe.close()


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


async def claims_ms(this: Bench, n: int) -> list[float]:
    """Round trips of claims of one job. The queue is as long afterwards as before."""
    call, times = scripts.claim(POOL, Asking("w", LIMITS.lease_s), room=Room(1)), []
    for _ in range(n):
        begun = time.perf_counter()
        row = (await this.pipe.run(call))[2]
        times.append((time.perf_counter() - begun) * 1000)
        await this.pipe.run(scripts.finish(row[0].decode(), row[1], ending=DONE))
        await this.producer.submit(job(64))
    return times


async def claim_depth(*, quick: bool) -> list[Figure]:
    """Claim times with 1,000, 100,000 and 1,000,000 jobs queued, one after the other on the same server."""
    depths, n, last = ((1_000, 100_000), 1000, "100k") if quick else ((1_000, 100_000, 1_000_000), 3000, "1M")
    found: dict[int, list[float]] = {}
    async with bench() as this:
        queued = 0
        for depth in depths:
            await this.fill(depth - queued, payload_bytes=64)
            queued = depth
            await claims_ms(this, 200)  # warms up
            found[depth] = await claims_ms(this, n)
    p99 = {depth: quantile(times, 0.99) for depth, times in found.items()}
    setting = f"{n} claims of 1 job at each depth, round trip over loopback, AOF everysec; p50/p99 ms: "
    setting += ", ".join(f"{d:,}: {statistics.median(t):.3f}/{p99[d]:.3f}" for d, t in found.items())
    ratio = p99[depths[-1]] / p99[depths[0]]
    name = "queue.claim_p99_ratio_1m_vs_1k" if not quick else "queue.claim_p99_ratio_100k_vs_1k"
    return [
        Figure(name, ratio, "times", 1.0, setting),
        Figure(f"queue.claim_ms_p99_{last}", p99[depths[-1]], "ms", p99[depths[0]], "baseline: 1,000 queued"),
    ]


async def memory(*, quick: bool) -> list[Figure]:
    """Redis' memory per queued job, and what is left when all have ended and their records have expired."""
    n = 20_000 if quick else 100_000
    async with bench(aof=False) as this:
        await this.fill(1000)
        await drain(this)
        empty = await this.memory_bytes()
        await this.fill(n)
        full = await this.memory_bytes()
        await drain(this)
        for _ in range(100):
            if int(await this.pipe.command("DBSIZE")) < 20:
                break
            await asyncio.sleep(0.1)
        keys = [key.decode() for key in await this.pipe.command("KEYS", "*")]
    left = [key for key in keys if ":job:" in key or ":in:" in key or ":res:" in key or ":hist:" in key]
    setting = f"{n:,} P2 jobs of {PAYLOAD_BYTES} bytes, used_memory less the payload"
    return [
        Figure("queue.bytes_per_job", (full - empty) / n - PAYLOAD_BYTES, "bytes", None, setting),
        Figure(
            "queue.keys_left_per_job",
            len(left) / n,
            "keys",
            None,
            f"{setting}; after all had ended and expired",
        ),
    ]


async def drain(this: Bench) -> None:
    consumer = this.consumer()
    while leases := (await consumer.claim(32)).leases:
        await consumer.finish_many([(lease, DONE) for lease in leases])


async def redis_cpu(*, quick: bool) -> list[Figure]:
    """Redis' CPU per job of each step, in microseconds."""
    n = 20_000 if quick else 60_000
    steps: dict[str, float] = {}
    async with bench() as this:
        consumer, leases = this.consumer(), list[Lease]()

        async def claim() -> None:
            while more := (await consumer.claim(32)).leases:
                leases.extend(more)

        async def finish() -> None:
            for at in range(0, len(leases), 32):
                await consumer.finish_many([(lease, DONE) for lease in leases[at : at + 32]])

        async def single() -> None:
            for _ in range(n // 10):
                await this.producer.submit(job())

        steps["enqueue"] = await cpu_us(this, single(), n // 10)
        steps["bulk enqueue"] = await cpu_us(this, this.fill(n), n)
        steps["claim of 32"] = await cpu_us(this, claim(), n + n // 10)
        steps["finish of 32"] = await cpu_us(this, finish(), n + n // 10)
    setting = "us of Redis' one core, AOF everysec: " + ", ".join(f"{k} {v:.1f}" for k, v in steps.items())
    total = steps["bulk enqueue"] + steps["claim of 32"] + steps["finish of 32"]
    return [Figure("queue.redis_cpu_us_per_job", total, "us", None, f"{setting}; sum of the last three")]


async def cpu_us(this: Bench, step: Coroutine[None, None, None], count: int) -> float:
    before = await this.cpu_s()
    await step
    return (await this.cpu_s() - before) / count * 1e6


@dataclass(slots=True)
class Idler:
    """A waiting worker, which counts how often it is woken."""

    this: Bench
    name: str
    served: Served
    wakes: int = 0
    done: int = 0

    async def run(self) -> None:
        consumer = self.this.consumer(self.name, pool=self.served)
        while True:
            claimed = await consumer.claim(4)
            self.done += len(claimed.leases)
            if claimed.leases:
                await consumer.finish_many([(lease, DONE) for lease in claimed.leases])
            if not claimed.more:
                begun = time.perf_counter()
                await consumer.wait(60.0)
                self.wakes += time.perf_counter() - begun < MAX_BLOCK_S  # else it looks by itself


async def idle(*, quick: bool, shards: int = 1) -> list[Figure]:
    """200 waiting workers: what they send meanwhile, and how many wake for one job."""
    queues = queues_of(POOL, shards)
    workers, jobs, seconds = (200, 50, 6.0) if quick else (200, 300, 20.0)
    async with bench() as this:
        homes = [Served(home_first(queues, queues[n % shards])) for n in range(workers)]
        idlers = [Idler(this, f"w{n}", served) for n, served in enumerate(homes)]
        beats = [Heartbeat(this.url, pool=i.served, worker_id=i.name, lease_s=10.0) for i in idlers]
        tasks = [asyncio.create_task(idler.run()) for idler in idlers]
        tasks += [asyncio.create_task(reap_forever(this.pipe, i.to_reap, limits=LIMITS)) for i in homes]
        tasks += [asyncio.create_task(keep_fresh(served, this.pipe)) for served in homes]
        for beat in beats:
            beat.start(lambda: b"{}", lambda _: None)
        await asyncio.sleep(2.0)
        before = await this.commands()
        await asyncio.sleep(seconds)
        sent = (await this.commands() - before) / seconds / workers
        wakes = sum(idler.wakes for idler in idlers)
        for n in range(jobs):
            await this.producer.submit(job(queue=queues[n % shards]))
            await asyncio.sleep(0.02)
        while sum(idler.done for idler in idlers) < jobs:  # noqa: ASYNC110 - it is not what is measured
            await asyncio.sleep(0.01)
        woken = (sum(idler.wakes for idler in idlers) - wakes) / jobs
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(asyncio.to_thread(beat.stop) for beat in beats))
    setting = f"{workers} waiting workers, each with its own blocking connection, heartbeat and reaper"
    suffix = f"_{shards}_shards" if shards > 1 else ""
    return [
        Figure(f"queue.idle_commands_per_s{suffix}", sent, "commands/s per worker", None, setting),
        Figure(f"queue.wakeups_per_job{suffix}", woken, "wakes", 1.0, f"{setting}; {jobs} jobs 20 ms apart"),
    ]


async def all_costs(*, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    for measure in (claim_depth, memory, redis_cpu, idle):
        figures += await measure(quick=quick)
    return figures + await idle(quick=quick, shards=4)
