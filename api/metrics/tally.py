"""What only an API process knows: counted here, added up in Redis over all processes and restarts (ADR 11).

The sums are a queue's books (broker/accounts.py) under a name that no pool may have; a process beats there as workers do in
their pools. What a process has counted since its last flush goes with it when it is killed.
"""

import asyncio
import logging
import os
import socket
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
import psutil

from api.metrics import catalogue as c
from api.metrics.family import Family, Kind, Samples
from broker import accounts, scripts
from broker.accounts import SUM, Page
from broker.connection import Pipe
from broker.errors import QueueFull, RedisAway
from broker.histograms import Histogram
from broker.job import base32
from broker.keys import API_BOOKS, PoolKeys
from broker.script import ms
from broker.scripts import Beat

log = logging.getLogger("headway.metrics")
KEYS = PoolKeys(API_BOOKS)
LOOK_S = 0.25
FLUSH_S = 1.0
GONE_S = 10.0  # without a beat


def process_name() -> str:
    """Of this process, for others."""
    return f"api-{socket.gethostname()[:24]}-{os.getpid()}-{base32(time.time_ns(), 5)}"


@dataclass(slots=True)
class Tally:
    """One per process. `open_requests` is kept by the middleware."""

    pipe: Pipe
    name: str = field(default_factory=process_name)
    open_requests: int = 0
    _page: Page = field(default_factory=Page)
    _worst_lag_s: float = 0.0
    _process: psutil.Process = field(default_factory=psutil.Process)

    def count(self, family: Family, *labels: str) -> None:
        """One more. `labels`: values, in the family's order."""
        self._add("|".join((family.name, *(label.replace("|", "/") for label in labels))), 1)

    def observe(self, family: Family, seconds: float) -> None:
        self._add(f"{family.name}|{bisect_left(family.bounds, seconds)}", 1)
        self._add(f"{family.name}|{SUM}", round(seconds * 1e6))

    def _add(self, name: str, amount: int) -> None:
        sums = self._page.waiting
        sums["t", name] = sums.get(("t", name), 0) + amount

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        await self.flush()  # so that it is seen from the start
        flushed = loop.time()
        while True:
            asked = loop.time()
            await asyncio.sleep(LOOK_S)
            lag_s = max(0.0, loop.time() - asked - LOOK_S)
            self.observe(c.LOOP_LAG, lag_s)
            self._worst_lag_s = max(self._worst_lag_s, lag_s)
            if loop.time() - flushed >= FLUSH_S:
                flushed = loop.time()
                await self.flush()

    async def flush(self) -> None:
        """Everything so far. Never raises: what is not answered for is sent again by the next one, and counts once."""
        try:
            began = time.perf_counter()
            await self.pipe.command("PING")
            self.observe(c.REDIS_SECONDS, time.perf_counter() - began)
            while sums := self._page.next():
                await self.pipe.run(accounts.flush(API_BOOKS, self.name, number=self._page.number, sums=sums))
                self._page.sent = {}
            await self._beat()
        except (RedisAway, QueueFull) as error:
            log.debug("%d sums are sent again: %s", len(self._page.sent), error)

    async def _beat(self) -> None:
        lag_s, self._worst_lag_s = self._worst_lag_s, 0.0
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
        record = {
            "lag_s": round(lag_s, 6),
            "requests": self.open_requests,
            "memory": memory.rss,
            "cpu_s": times.user + times.system,
        }
        beat = Beat(self.name, orjson.dumps(record), (), GONE_S)
        await self.pipe.run(scripts.renew(API_BOOKS, beat))
        gone = round(time.time() * 1000) - ms(60 * GONE_S)
        await self.pipe.command("ZREMRANGEBYSCORE", KEYS.named("workers"), "-inf", gone)


async def read(pipe: Pipe) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
    """The sums by field, and the processes' records by name. Raises RedisAway."""
    flat, names = await asyncio.gather(
        pipe.command("HGETALL", KEYS.named("totals")),
        pipe.command("ZRANGE", KEYS.named("workers"), -c.MOST_WORKERS, -1),
    )
    sums = {name.decode(): int(amount) for name, amount in zip(flat[::2], flat[1::2], strict=True)}
    known = [name.decode() for name in names]
    records = await asyncio.gather(*(pipe.command("HGET", KEYS.worker(name), "record") for name in known))
    return sums, {name: orjson.loads(raw) for name, raw in zip(known, records, strict=True) if raw}


def add_tally(samples: Samples, sums: Mapping[str, int]) -> None:
    """Fields of metrics that this version does not know are left alone."""
    buckets: dict[str, dict[str, int]] = {}
    for field_name, amount in sorted(sums.items()):
        name, *labels = field_name.split("|")
        family = c.TALLIED.get(name)
        if family is None:
            continue
        if family.kind is Kind.HISTOGRAM:
            buckets.setdefault(name, {})[labels[0]] = amount
        elif len(labels) == len(family.labels):
            samples.add(family, amount, *labels)
    for name, found in buckets.items():
        bounds = c.TALLIED[name].bounds
        counts = tuple(found.get(str(n), 0) for n in range(len(bounds) + 1))
        samples.add_histogram(c.TALLIED[name], Histogram(bounds, counts, found.get(SUM, 0) / 1e6))


def add_processes(samples: Samples, records: Mapping[str, Mapping[str, float]]) -> None:
    for name, record in sorted(records.items()):
        samples.add(c.API_LAG, record["lag_s"], name)
        samples.add(c.API_REQUESTS, record["requests"], name)
        samples.add(c.API_MEMORY, record["memory"], name)
        samples.add(c.API_CPU, record["cpu_s"], name)
