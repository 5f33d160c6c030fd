"""One scrape: reads what there is and renders it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.metrics import tally
from api.metrics.family import Samples
from api.metrics.pools import add_books, add_lessons, add_pool
from api.services import Services
from broker import accounts, fleet
from broker.accounts import Book
from broker.fleet import PoolView
from broker.tenants import Tenant
from predictor.lessons import Lessons


async def scrape(services: Services, *, caller: Tenant) -> bytes:
    """Prometheus' text format; names other tenants to operators only. Raises RedisAway."""
    pipe, cache = services.pipe, services.fleet
    views = await cache.views(max_age_s=0.0)
    oldest, lessons, books, (sums, records) = await asyncio.gather(
        asyncio.gather(*(fleet.oldest_s(pipe, cache.queues(view.pool)) for view in views)),
        services.foresight.lessons(view.pool for view in views),
        accounts.all_totals(pipe),
        tally.read(pipe),
    )
    state = State(list(zip(views, oldest, strict=True)), lessons, books, sums, records)
    only = None if caller.access.admin else caller.name
    return await asyncio.to_thread(render, state, only=only)  # so that requests need not wait for it


@dataclass(frozen=True, slots=True)
class State:
    """What was read. `pools`: with how long the oldest jobs have waited, by class."""

    pools: Sequence[tuple[PoolView, Sequence[float | None]]]
    lessons: Mapping[str, Lessons]
    books: Mapping[str, Book]
    sums: Mapping[str, int]
    processes: Mapping[str, Mapping[str, float]]


def render(state: State, *, only: str | None = None) -> bytes:
    """`only`: the tenant that may be named; None: all."""
    samples = Samples()
    for view, oldest_s in state.pools:
        add_pool(samples, view, oldest_s=oldest_s)
    add_lessons(samples, state.lessons)
    add_books(samples, state.books, only=only)
    tally.add_tally(samples, state.sums)
    tally.add_processes(samples, state.processes)
    return samples.text()
