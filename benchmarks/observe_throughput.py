"""What being watched costs: answers per second while `/metrics` is scraped every second and 20 people have the live page open,
against nobody looking. Used by `observe.py`.

The engines are simulated ones that answer at once, so that Headway itself is what there is no more of. Watched and unwatched spans
take turns, so that the machine's drift meets both. The counting itself is always on, in both.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
from figures import Figure
from outage import Fleet, all_up, fleet

ENGINE = ("--speed", "50", "--max-num-seqs", "64")
WORKERS, CALLERS, VIEWERS = 2, 32, 20
BODY = {"model": "large", "max_tokens": 16, "messages": [{"role": "user", "content": "Name three rivers."}]}
SPAN_S, REST_S = 4.0, 0.5


@dataclass(slots=True)
class Counted:
    """Whole answers so far, by all callers."""

    answers: int = 0
    scrapes: int = 0
    pictures: int = 0
    rates: dict[bool, list[float]] = field(
        default_factory=lambda: {True: [], False: []}
    )  # by whether watched


async def ask_on(url: str, http: aiohttp.ClientSession, counted: Counted, *, stream: bool) -> None:
    """One caller, until cancelled."""
    while True:
        async with http.post(f"{url}/v1/chat/completions", json=BODY | {"stream": stream}) as answer:
            answer.raise_for_status()
            await answer.read()
        counted.answers += 1


async def scrape_on(url: str, http: aiohttp.ClientSession, counted: Counted) -> None:
    while True:
        async with http.get(f"{url}/metrics") as page:
            page.raise_for_status()
            await page.read()
        counted.scrapes += 1
        await asyncio.sleep(1.0)


async def view_on(url: str, http: aiohttp.ClientSession, counted: Counted) -> None:
    """One page that is open."""
    async with http.get(f"{url}/v1/overview/events") as events:
        events.raise_for_status()
        async for _ in events.content.iter_chunks():
            counted.pictures += 1


@contextlib.asynccontextmanager
async def watched(url: str, http: aiohttp.ClientSession, counted: Counted) -> AsyncIterator[None]:
    looking = [asyncio.create_task(view_on(url, http, counted)) for _ in range(VIEWERS)]
    looking.append(asyncio.create_task(scrape_on(url, http, counted)))
    try:
        yield
        assert not any(task.done() for task in looking), "somebody stopped looking"
    finally:
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)


async def rate(counted: Counted) -> float:
    """Answers per second over one span."""
    await asyncio.sleep(REST_S)
    answers, began = counted.answers, time.perf_counter()
    await asyncio.sleep(SPAN_S)
    return (counted.answers - answers) / (time.perf_counter() - began)


async def take_turns(this: Fleet, http: aiohttp.ClientSession, counted: Counted, *, rounds: int) -> None:
    await rate(counted)
    for number in range(rounds):
        for looked_at in (True, False) if number % 2 else (False, True):
            async with watched(this.url, http, counted) if looked_at else contextlib.nullcontext():
                counted.rates[looked_at].append(await rate(counted))


async def in_turns(this: Fleet, http: aiohttp.ClientSession, *, rounds: int) -> Counted:
    """Under the callers' load."""
    counted = Counted()
    asks = (ask_on(this.url, http, counted, stream=n % 2 == 0) for n in range(CALLERS))
    callers = [asyncio.create_task(ask) for ask in asks]
    try:
        await take_turns(this, http, counted, rounds=rounds)
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return counted


async def throughput(*, quick: bool) -> list[Figure]:
    """The median over the rounds of watched over unwatched; the baseline is the unwatched rate."""
    rounds = 1 if quick else 24
    with fleet({"small": (ENGINE,), "large": (ENGINE,) * WORKERS}) as this:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await all_up(this, http, {"small": 1, "large": WORKERS})
            counted = await in_turns(this, http, rounds=rounds)
    alone = statistics.median(counted.rates[False])
    pairs = zip(counted.rates[True], counted.rates[False], strict=True)
    ratio = statistics.median(on / off for on, off in pairs)
    setting = (
        f"{CALLERS} callers, half of them streaming, {WORKERS} workers on engines that answer at once, 1 API process; {rounds} rounds of "
        f"{SPAN_S:g} s each way; {counted.scrapes} scrapes and {counted.pictures} pictures to {VIEWERS} viewers; baseline: answers/s unwatched"
    )
    return [Figure("observe.throughput_ratio", round(ratio, 4), "of the unwatched", round(alone, 1), setting)]
