"""What watchers cost the API: thousands of idle ones on one process, and one among a hundred that does not read.

Real processes: Redis, a worker with a simulated engine, and two API processes, of which one has the watchers, or the one that does not
read; the other is the baseline. Both are asked in turns, or at the same time, so that the machine's other work meets both.

    python benchmarks/sse.py [--quick] [--json FILE]
"""

import asyncio
import resource
import socket
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp
import psutil
from figures import Figure, arguments, report
from outage import UP_S, Fleet, fleet
from sse_watcher import Watcher

from broker import policy, scripts
from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.policy import Asking

AT_ONCE = 64  # clients that submit or connect at a time
PER_ADDRESS = 5000  # connections from one 127.0.0.x, well below its free ports
READERS = 100
CHUNK_BYTES = 16 * 1024
CHUNK_S = 0.1
LEASE_S = 60.0  # longer than a round
STILL = 20  # jobs whose watchers read nothing
BURST = 5  # live requests before the other process has its turn
INSTANT = ("--speed", "1000", "--output-tokens", "4")


@dataclass(frozen=True, slots=True)
class Plan:
    """`idle`: watchers. `asks`: live requests to each process. `rounds` of `round_s` with a reader that stands still at one of them."""

    idle: int
    asks: int
    rounds: int
    round_s: float


QUICK = Plan(idle=1000, asks=200, rounds=2, round_s=3.0)
WHOLE = Plan(idle=10_000, asks=2000, rounds=8, round_s=10.0)


@dataclass(slots=True)
class Api:
    """An API process, and a client of it."""

    url: str
    http: aiohttp.ClientSession
    watchers: list[Watcher] = field(default_factory=list)

    @property
    def rss_mb(self) -> float:
        port = self.url.rpartition(":")[2]
        [process] = [
            child
            for child in psutil.Process().children()
            if "api.cli.serve" in child.cmdline() and child.environ()["HEADWAY_PORT"] == port
        ]
        return process.memory_info().rss / 2**20

    async def up(self) -> None:
        """Once a live request is answered. Raises RuntimeError."""
        give_up = time.monotonic() + UP_S
        while time.monotonic() < give_up:
            try:
                await self.ask()
            except (aiohttp.ClientError, RuntimeError):
                await asyncio.sleep(0.1)
            else:
                return
        raise RuntimeError("no live request is answered")

    async def ask(self) -> float:
        """Seconds until a live request is answered."""
        begun = time.perf_counter()
        body = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(await answer.text())
            await answer.read()
        return time.perf_counter() - begun

    async def submit(self, count: int) -> list[str]:
        """Jobs of a pool that nobody serves."""
        body = {"model": "large", "class": "P1", "messages": [{"role": "user", "content": "hi"}]}
        turns = asyncio.Semaphore(AT_ONCE)

        async def one() -> str:
            headers = {"X-Headway-Fallback": "wait"}
            async with (
                turns,
                self.http.post(f"{self.url}/v1/jobs", json=body, headers=headers) as answer,
            ):
                answer.raise_for_status()
                return str((await answer.json())["id"])

        return list(await asyncio.gather(*(one() for _ in range(count))))

    async def watch(self, job_ids: list[str], delays: list[float] | None = None) -> None:
        """One watcher of each."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, job_id: str) -> None:
            async with turns:
                watcher = await self._connect(Watcher(job_id, delays), number)
                await watcher.opened

        await asyncio.gather(*(one(number, job_id) for number, job_id in enumerate(job_ids)))

    async def _connect(self, watcher: Watcher, number: int, *, receive_bytes: int = 0) -> Watcher:
        parts = urlsplit(self.url)
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.bind((f"127.0.0.{1 + number // PER_ADDRESS}", 0))
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (parts.hostname, parts.port))
        await loop.create_connection(lambda: watcher, sock=sock)
        self.watchers.append(watcher)
        return watcher

    async def stand_still(self, job_id: str) -> None:
        """A watcher that reads its first event and nothing more."""
        watcher = await self._connect(Watcher(job_id), 0, receive_bytes=4096)
        await watcher.opened
        assert watcher.transport is not None
        watcher.transport.pause_reading()

    def leave(self) -> None:
        for watcher in self.watchers:
            watcher.close()
        self.watchers.clear()


def quantile(values: list[float], q: float) -> float:
    return statistics.quantiles(values, n=1000)[round(q * 1000) - 1]


async def in_turns(apis: tuple[Api, Api], asks: int) -> tuple[list[float], list[float]]:
    """Seconds that `asks` live requests took at each."""
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(asks // BURST):
        for which in (0, 1) if number % 2 else (1, 0):
            took[which].extend([await apis[which].ask() for _ in range(BURST)])
    return took


@asynccontextmanager
async def pair(this: Fleet) -> AsyncIterator[tuple[Api, Api]]:
    async with aiohttp.ClientSession() as http:
        apis = Api(this.url, http), Api(this.open_another(), http)
        for api in apis:
            await api.up()
        yield apis


async def idle(this: Fleet, plan: Plan) -> list[Figure]:
    async with pair(this) as (watched, other):
        job_ids = await watched.submit(plan.idle)
        await in_turns((watched, other), BURST)
        alone_mb, begun = watched.rss_mb, time.perf_counter()
        await watched.watch(job_ids)
        open_s = time.perf_counter() - begun
        among, alone = await in_turns((watched, other), plan.asks)
        idle_mb = watched.rss_mb
        watched.leave()
    count, each_kb = f"{plan.idle // 1000}k", (idle_mb - alone_mb) * 1024 / plan.idle
    setting = f"{plan.idle} watchers of a queued job each on 1 API process, pinged every 15 s"
    before = f"{setting}; baseline: before them"
    figures = [
        Figure(f"sse.idle_{count}_rss_mb", round(idle_mb, 1), "MiB", round(alone_mb, 1), before),
        Figure("sse.idle_kb_each", round(each_kb, 2), "KiB", None, setting),
        Figure(f"sse.open_{count}_s", round(open_s, 2), "s", None, f"{setting}; {AT_ONCE} at a time"),
    ]
    for q, name in ((0.5, "p50"), (0.99, "p99")):
        with_ms, without_ms = quantile(among, q) * 1000, quantile(alone, q) * 1000
        told = (
            f"{setting}; live requests through queue, worker and an instant engine: {with_ms:.1f} ms, "
            f"at a process without watchers {without_ms:.1f} ms"
        )
        figures.append(Figure(f"sse.live_{name}_ratio", round(with_ms / without_ms, 3), "times", None, told))
    return figures


@asynccontextmanager
async def writer(redis_url: str) -> AsyncIterator[Consumer]:
    """A worker of the pool that nobody else serves, without heartbeats."""
    pipe = Pipe(redis_url)
    asking = Asking("bench", lease_s=LEASE_S)
    consumer = Consumer(pipe, redis_url, pool="large", asking=asking, limits=policy.Limits())
    yield consumer
    await consumer.close()
    await pipe.close()


async def write(consumer: Consumer, *, jobs: int, seconds: float) -> None:
    """Chunks of the next jobs, at a steady rate, each with its time."""
    leases = (await consumer.claim(jobs)).leases
    begun, padding = time.monotonic(), b"x" * CHUNK_BYTES
    for number in range(int(seconds / CHUNK_S)):
        await asyncio.sleep(max(0.0, begun + number * CHUNK_S - time.monotonic()))
        data = b'{"at":%d,"text":"%s"}' % (time.monotonic_ns(), padding)
        await consumer.append(
            [Chunk(lease.job_id, lease.token, seq=number + 1, data=data) for lease in leases]
        )
    await asyncio.sleep(0.5)
    for lease in leases:
        await consumer.finish(lease, scripts.Ending(True, b"{}", prompt_tokens=1, output_tokens=1))


async def slow_round(apis: tuple[Api, Api], consumer: Consumer, *, seconds: float) -> list[float]:
    """p99 of the readers that do read, at each; one at the first does not."""
    [job_id] = await apis[0].submit(1)
    delays: tuple[list[float], list[float]] = ([], [])
    for api, into in zip(apis, delays, strict=True):
        await api.watch([job_id] * READERS, into)
    await apis[0].stand_still(job_id)
    await write(consumer, jobs=1, seconds=seconds)
    for api in apis:
        api.leave()
    return [quantile(each, 0.99) for each in delays]


async def slow(this: Fleet, plan: Plan) -> list[Figure]:
    p99s: list[list[float]] = []
    async with pair(this) as (one, other), writer(this.redis_url) as consumer:
        for number in range(plan.rounds):
            turn = (one, other) if number % 2 else (other, one)
            p99s.append(await slow_round(turn, consumer, seconds=plan.round_s))
        before_mb = one.rss_mb
        for job_id in await one.submit(STILL):
            await one.stand_still(job_id)
        await write(consumer, jobs=STILL, seconds=plan.round_s)
        kept_kb = (one.rss_mb - before_mb) * 1024 / STILL
        one.leave()
    with_one, without = (statistics.median(each) * 1000 for each in zip(*p99s, strict=True))
    ratio = statistics.median(still / alone for still, alone in p99s)
    sent = f"{CHUNK_BYTES // 1024} KiB every {CHUNK_S * 1000:.0f} ms for {plan.round_s:.0f} s"
    told = (
        f"{READERS} watchers of a job at each of 2 API processes, {sent}; p99 from the worker's write to the reader, "
        f"medians of {plan.rounds} rounds: {with_one:.1f} ms beside one more that reads nothing, {without:.1f} ms at the other"
    )
    kept = f"growth of RSS by {STILL} watchers that read nothing, of a job each, {sent}"
    return [
        Figure("sse.slow_reader_p99_ratio", round(ratio, 3), "times", None, told),
        Figure("sse.slow_reader_kept_kb", round(kept_kb, 1), "KiB each", None, kept),
    ]


def main() -> None:
    options = arguments(__doc__).parse_args()
    plan = QUICK if options.quick else WHOLE
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = {
        "HEADWAY_MAX_CONNECTIONS": str(plan.idle + 1000),
        "HEADWAY_MAX_QUEUED": "1000000",
        "HEADWAY_LEASE_S": str(LEASE_S),
    }
    with fleet({"small": (INSTANT,)}, **settings) as this:
        report(asyncio.run(idle(this, plan)), options.json)
    with fleet({"small": (INSTANT,)}, **settings) as this:
        report(asyncio.run(slow(this, plan)), options.json)


if __name__ == "__main__":
    main()
