"""A queue's books: a flush counts once, nothing is kept half, and what is read is what was written, by pool, tenant and day."""

from datetime import date, timedelta
from typing import Any

import pytest
from redis.exceptions import ResponseError

from broker import accounts
from broker.accounts import Attempt, Book, LastHour, Sums, Used
from broker.connection import Pipe
from broker.errors import MemoryFull
from broker.job import ServiceClass
from broker.keys import PoolKeys
from tests.broker.jobs import KEYS, POOL, Backdoor

P0, P2 = ServiceClass.P0, ServiceClass.P2
USED = Used(1, 1, prompt_tokens=30, output_tokens=7, cached_tokens=10, gpu_us=1_500_000, nano_usd=800_000)
TIMES = {"wait": 0.2, "ttft": 0.4, "tpot": 0.02, "e2e": 1.75}


def sums_of(*attempts: Attempt) -> Sums:
    sums: Sums = {}
    for attempt in attempts:
        attempt.add_to(sums)
    return sums


async def flush(
    pipe: Pipe, *attempts: Attempt, queue: str = POOL, number: int = 1, worker: str = "w1"
) -> int:
    await accounts.note_queue(pipe, queue)
    return int(await pipe.run(accounts.flush(queue, worker, number=number, sums=sums_of(*attempts))))


async def test_what_was_flushed_is_in_the_totals_the_hour_and_the_day(pipe: Pipe) -> None:
    assert await flush(pipe, Attempt("acme", P0, USED, TIMES)) == 1
    lately = (await accounts.LastHour(pipe).read([POOL]))[POOL]
    for book in ((await accounts.totals(pipe, [POOL]))[POOL], lately):
        assert book.all_used == USED
        assert {what: book.time(what).sum_s for what in TIMES} == pytest.approx(TIMES)
        assert all(book.time(what, [P0]).count == 1 and book.time(what, [P2]).count == 0 for what in TIMES)
    assert set((await accounts.totals(pipe, [POOL]))[POOL].used) == {("acme", P0)}
    assert set(lately.used) == {("", P0)}
    today = accounts.today()
    [row] = await accounts.usage(pipe, [POOL], first=today, last=today)
    assert (row.day, row.tenant, row.service_class, row.pool, row.used) == (today, "acme", P0, POOL, USED)


async def test_a_flush_that_is_sent_again_counts_once(pipe: Pipe) -> None:
    one = Attempt("acme", P0, USED, TIMES)
    assert [await flush(pipe, one), await flush(pipe, one), await flush(pipe, one, number=2)] == [1, 0, 1]
    assert await flush(pipe, one, number=1, worker="w2") == 1  # each worker has its own numbers
    assert (await accounts.totals(pipe, [POOL]))[POOL].all_used == USED + USED + USED


async def test_nothing_of_a_flush_is_kept_when_memory_is_full_and_it_counts_when_sent_again(
    pipe: Pipe, backdoor: Backdoor
) -> None:
    one = Attempt("acme", P0, USED, TIMES)
    await accounts.note_queue(pipe, POOL)
    before = backdoor.snapshot()
    backdoor.fill_memory()
    try:
        with pytest.raises(MemoryFull):
            await pipe.run(accounts.flush(POOL, "w1", number=1, sums=sums_of(one)))
    finally:
        backdoor.free_memory()
    assert backdoor.snapshot() == before
    assert await flush(pipe, one) == 1


@pytest.mark.parametrize("amount", [10**15, 2**64, -(10**15), "1.5", "x", ""])
async def test_nothing_of_a_flush_is_kept_when_one_of_its_sums_is_no_number_that_can_be_added(
    pipe: Pipe, backdoor: Backdoor, amount: Any
) -> None:
    good = sums_of(Attempt("acme", P0, USED, TIMES))
    assert await pipe.run(accounts.flush(POOL, "w1", number=1, sums=good)) == 1
    before = backdoor.snapshot()
    with pytest.raises(ResponseError, match="no amount"):
        await pipe.run(accounts.flush(POOL, "w1", number=2, sums=good | {("td", "attempts|0|b"): amount}))
    assert backdoor.snapshot() == before
    assert await pipe.run(accounts.flush(POOL, "w1", number=3, sums=good)) == 1


@pytest.mark.parametrize("known", ["9" * 19, "x"])
async def test_nothing_of_a_flush_is_kept_when_what_is_there_already_leaves_no_room(
    pipe: Pipe, backdoor: Backdoor, known: str
) -> None:
    backdoor.ask("HSET", KEYS.named("totals"), "attempts|0|acme", known)
    before = backdoor.snapshot()
    with pytest.raises(ResponseError, match="no room"):
        await pipe.run(accounts.flush(POOL, "w1", number=1, sums=sums_of(Attempt("acme", P0, USED, TIMES))))
    assert backdoor.snapshot() == before


async def test_all_but_the_totals_expires(pipe: Pipe, backdoor: Backdoor) -> None:
    await flush(pipe, Attempt("acme", P0, USED, TIMES))
    keys = backdoor.ask("KEYS", f"{KEYS.prefix}*")
    lives = {k.decode().removeprefix(KEYS.prefix).partition(":")[0]: backdoor.ask("TTL", k) for k in keys}
    assert lives.pop("totals") == lives.pop("stats") == -1
    bounds = {"minute": 3900, "day": accounts.DAYS_KEPT * 86_400, "flushed": 86_400}
    assert lives.keys() == bounds.keys()
    assert all(bounds[name] - 10 <= ttl <= bounds[name] for name, ttl in lives.items())


async def test_shards_are_read_as_their_pool_and_pools_apart(pipe: Pipe) -> None:
    for queue in ("large", "large~1", POOL):
        await flush(pipe, Attempt("acme", P0, USED, {"wait": 0.2}), queue=queue)
    queues = await accounts.accounted(pipe)
    assert queues == ["large", "large~1", POOL]
    found = await accounts.totals(pipe, queues)
    assert {pool: (book.all_used.requests, book.time("wait").count) for pool, book in found.items()} == {
        "large": (2, 2),
        POOL: (1, 1),
    }
    today = accounts.today()
    rows = await accounts.usage(pipe, queues, first=today, last=today)
    assert [(row.pool, row.used.requests) for row in rows] == [("large", 2), (POOL, 1)]


async def test_usage_is_of_the_days_that_were_asked_for(pipe: Pipe, backdoor: Backdoor) -> None:
    start = date(2026, 2, 27)
    for n in range(4):
        number = (start + timedelta(n) - date(1970, 1, 1)).days
        backdoor.ask("HSET", KEYS.day(number), "requests|2|acme", n + 1)
        backdoor.ask("EXPIRE", KEYS.day(number), 100)
    rows = await accounts.usage(pipe, [POOL], first=date(2026, 2, 28), last=date(2026, 3, 1))
    assert [(str(row.day), row.used.requests) for row in rows] == [("2026-02-28", 2), ("2026-03-01", 3)]


async def test_minutes_that_have_passed_are_read_once_and_then_forgotten(
    pipe: Pipe, backdoor: Backdoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [60_000_000.0]
    monkeypatch.setattr("broker.accounts.time.time", lambda: now[0])
    hour = LastHour(pipe)
    for ago in (59, 5, 0):
        backdoor.ask(
            "HSET", KEYS.minute(1_000_000 - ago), "requests|0|", 1, "wait|0|3", 1, "wait|0|us", 70_000
        )
        backdoor.ask("EXPIRE", KEYS.minute(1_000_000 - ago), 100)

    async def requests() -> int:
        return (await hour.read([POOL]))[POOL].all_used.requests

    assert await requests() == 3
    for ago in (5, 0):  # no worker adds to a minute that has passed
        backdoor.ask("HINCRBY", KEYS.minute(1_000_000 - ago), "requests|0|", 1)
    assert await requests() == 4
    now[0] += 60
    assert await requests() == 3


async def test_what_another_version_wrote_is_left_out(pipe: Pipe, backdoor: Backdoor) -> None:
    backdoor.ask("HSET", PoolKeys(POOL).named("totals"), "joules|0|acme", 5, "requests|0|acme", 2)
    assert (await accounts.totals(pipe, [POOL]))[POOL] == Book({("acme", P0): Used(requests=2)})


def test_a_class_without_times_has_none_and_zero_is_not_written() -> None:
    sums = sums_of(Attempt("acme", P2, Used(attempts=1), {}))
    assert sums == {("td", "attempts|2|acme"): 1, ("m", "attempts|2|"): 1}
