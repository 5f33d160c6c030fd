"""What jobs have used (tokens, GPU time, money) and how long they took: written by workers, read for metrics, page and usage.

Each queue has three kinds of books, hashes of sums: `totals`; one for each minute of the last hour; one for each day (UTC). A field is
`what|class|tenant` for what was used, `what|class|bucket` for times (histograms.BOUNDS). Integers only: microseconds, nano-dollars.
A worker adds to them by one script that counts a repeated flush once. docs/cost.md says what the numbers mean.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import islice

from broker.connection import Pipe
from broker.histograms import BOUNDS, READ, Histogram, added, bucket_of, empty
from broker.job import ServiceClass, pool_of_queue
from broker.keys import ACCOUNTED, PoolKeys
from broker.policy import DAY_S
from broker.script import Argument, Call, ms, script

MINUTE_TTL_S = 65 * 60.0
DAYS_KEPT = 400
NUMBER_TTL_S = DAY_S  # that a flush may be repeated after
MOST_SUMS = 1000  # of one flush: others wait meanwhile
EPOCH = date(1970, 1, 1)
HOUR_MINUTES = 60
SUM = "us"  # in place of a bucket: all times together
IN_STATS = {"prompt_tokens": "tokens_in", "output_tokens": "tokens_out", "cached_tokens": "tokens_cached"}
Sums = dict[tuple[str, str], int]  # books (letters, as account.lua has them) and field


@dataclass(frozen=True, slots=True)
class Used:
    """`requests`: jobs, each counted with the attempt that ended it. `cached_tokens` are part of `prompt_tokens`."""

    requests: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    gpu_us: int = 0
    nano_usd: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def gpu_s(self) -> float:
        return self.gpu_us / 1e6

    @property
    def usd(self) -> float:
        return self.nano_usd / 1e9


NUMBERS = tuple(each.name for each in fields(Used))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a job, once it has ended. `times`: seconds, by the names of BOUNDS; those that are not known are absent."""

    tenant: str
    service_class: ServiceClass
    used: Used
    times: Mapping[str, float]

    def add_to(self, sums: Sums) -> None:
        rank = f"{self.service_class:d}"
        for what in NUMBERS:
            if amount := getattr(self.used, what):
                _add(sums, ("td", f"{what}|{rank}|{self.tenant}"), amount=amount)
                _add(sums, ("m", f"{what}|{rank}|"), amount=amount)
                if what in IN_STATS:
                    _add(sums, ("s", IN_STATS[what]), amount=amount)
        for what, seconds in self.times.items():
            _add(sums, ("tm", f"{what}|{rank}|{bucket_of(what, seconds)}"), amount=1)
            _add(sums, ("tm", f"{what}|{rank}|{SUM}"), amount=round(seconds * 1e6))


def _add(sums: Sums, place: tuple[str, str], *, amount: int) -> None:
    sums[place] = sums.get(place, 0) + amount


@dataclass(slots=True)
class Page:
    """Sums on their way to the books of one queue. `sent`: a part that was not answered for, under `number`."""

    waiting: Sums = field(default_factory=dict)
    sent: Sums = field(default_factory=dict)
    number: int = 0

    def next(self) -> Sums:
        """What to send; empty if there is nothing. The same again until `sent` was emptied."""
        if not self.sent:
            self.sent = dict(islice(self.waiting.items(), MOST_SUMS))
            self.number += bool(self.sent)
            for each in self.sent:
                del self.waiting[each]
        return self.sent


def flush(queue: str, worker_id: str, *, number: int, sums: Sums) -> Call:
    """`number`: of the worker's flushes to this queue, from 1; sent again with the same number, it counts once."""
    k = PoolKeys(queue)
    args: list[Argument] = [worker_id, number, ms(NUMBER_TTL_S), ms(MINUTE_TTL_S), ms(DAYS_KEPT * DAY_S)]
    for (books, name), amount in sums.items():
        args += (books, name, amount)
    return Call(script("account"), (k.prefix, k.named("stats"), k.named("totals")), tuple(args))


async def note_queue(pipe: Pipe, queue: str) -> None:
    """It has books from now on, for as long as days are kept. Now and then, by its workers. Raises RedisAway, QueueFull."""
    today = round(time.time() // DAY_S)
    await pipe.command("ZADD", ACCOUNTED, today, queue)
    await pipe.command("ZREMRANGEBYSCORE", ACCOUNTED, "-inf", today - DAYS_KEPT)


async def accounted(pipe: Pipe) -> list[str]:
    """The queues that have books, also those that nobody serves any more. Raises RedisAway."""
    return sorted(name.decode() for name in await pipe.command("ZRANGE", ACCOUNTED, 0, 9999))


@dataclass(frozen=True, slots=True)
class Book:
    """`used` by tenant and class; the tenant is empty in a minute's. `times` by name (BOUNDS without `read`) and class, where there
    are any. `reading`: how fast prompts were read."""

    used: Mapping[tuple[str, ServiceClass], Used] = field(default_factory=dict)
    times: Mapping[tuple[str, ServiceClass], Histogram] = field(default_factory=dict)
    reading: Histogram = field(default_factory=partial(empty, READ))

    @property
    def all_used(self) -> Used:
        return sum(self.used.values(), Used())

    def time(self, what: str, classes: Iterable[ServiceClass] = tuple(ServiceClass)) -> Histogram:
        """Of these classes together; it may be empty."""
        return added(what, [self.times[what, c] for c in classes if (what, c) in self.times])


async def totals(pipe: Pipe, queues: Sequence[str]) -> dict[str, Book]:
    """By pool: since its queues were first used. Raises RedisAway."""
    books = await asyncio.gather(*(_read(pipe, PoolKeys(queue).named("totals")) for queue in queues))
    return _by_pool(zip(queues, books, strict=True))


async def all_totals(pipe: Pipe) -> dict[str, Book]:
    """`totals` of all queues that have books, also of pools that nobody serves any more. Raises RedisAway."""
    return await totals(pipe, await accounted(pipe))


class LastHour:
    """Reads the last 60 minutes; keeps those that have passed, as nothing is added to them any more."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._kept: dict[tuple[str, int], Book] = {}

    async def read(self, queues: Sequence[str]) -> dict[str, Book]:
        """By pool. Raises RedisAway."""
        now = int(time.time() // 60)  # two clocks may differ by a minute: the last two are read again
        wanted = [(queue, minute) for queue in queues for minute in range(now - HOUR_MINUTES + 1, now + 2)]
        missing = [each for each in wanted if each not in self._kept]
        keys = (PoolKeys(queue).minute(minute) for queue, minute in missing)
        found = dict(zip(missing, await asyncio.gather(*(_read(self._pipe, k) for k in keys)), strict=True))
        known = self._kept | found
        self._kept = {(queue, minute): known[queue, minute] for queue, minute in wanted if minute < now - 1}
        return _by_pool((queue, known[queue, minute]) for queue, minute in wanted)


@dataclass(frozen=True, slots=True)
class Row:
    """What a tenant used of a pool in one class on one day."""

    day: date
    tenant: str
    service_class: ServiceClass
    pool: str
    used: Used


async def usage(pipe: Pipe, queues: Sequence[str], *, first: date, last: date) -> list[Row]:
    """Of all tenants, from `first` to `last`, both included. Raises RedisAway."""
    days = [first + timedelta(n) for n in range((last - first).days + 1)]
    asked = [(queue, day) for queue in queues for day in days]
    keys = (PoolKeys(queue).day((day - EPOCH).days) for queue, day in asked)
    books = await asyncio.gather(*(_read(pipe, key) for key in keys))
    rows: dict[tuple[date, str, ServiceClass, str], Used] = {}
    for (queue, day), book in zip(asked, books, strict=True):
        for (tenant, service_class), used in book.used.items():
            place = day, tenant, service_class, pool_of_queue(queue)
            rows[place] = rows.get(place, Used()) + used
    return [Row(*place, used) for place, used in sorted(rows.items())]


def today() -> date:
    """The day that is written to now."""
    return datetime.now(UTC).date()


async def _read(pipe: Pipe, key: str) -> Book:
    flat = await pipe.command("HGETALL", key)
    used: dict[tuple[str, ServiceClass], dict[str, int]] = {}
    times: dict[tuple[str, ServiceClass], dict[str, int]] = {}
    for name, amount in zip(flat[::2], flat[1::2], strict=True):
        what, rank, rest = name.decode().split("|")
        place = ServiceClass(int(rank))
        if what in BOUNDS:
            times.setdefault((what, place), {})[rest] = int(amount)
        elif what in NUMBERS:
            used.setdefault((rest, place), {})[what] = int(amount)
    histograms = {place: _histogram(place[0], found) for place, found in times.items()}
    reading = added(READ, [histograms.pop(place) for place in list(histograms) if place[0] == READ])
    return Book({place: Used(**found) for place, found in used.items()}, histograms, reading)


def _histogram(what: str, found: Mapping[str, int]) -> Histogram:
    bounds = BOUNDS[what]
    counts = tuple(found.get(str(n), 0) for n in range(len(bounds) + 1))
    return Histogram(bounds, counts, found.get(SUM, 0) / 1e6)


def _by_pool(books: Iterable[tuple[str, Book]]) -> dict[str, Book]:
    parts: dict[str, list[Book]] = {}
    for queue, book in books:
        parts.setdefault(pool_of_queue(queue), []).append(book)
    return {pool: merged(some) for pool, some in parts.items()}


def merged(some: Sequence[Book]) -> Book:
    """Several as one."""
    used: dict[tuple[str, ServiceClass], Used] = {}
    times: dict[tuple[str, ServiceClass], list[Histogram]] = {}
    for book in some:
        for place, amount in book.used.items():
            used[place] = used.get(place, Used()) + amount
        for place, histogram in book.times.items():
            times.setdefault(place, []).append(histogram)
    reading = added(READ, [book.reading for book in some])
    return Book(used, {place: added(place[0], found) for place, found in times.items()}, reading)
