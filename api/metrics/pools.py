"""The state and the counters of pools as samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.drain import queued, queued_s
from api.metrics import catalogue as c
from api.metrics.family import Family, Samples
from broker.accounts import Book, Used
from broker.balance import judge
from broker.fleet import PoolView
from broker.job import ServiceClass, Status
from predictor.lessons import Lessons

ENDS = tuple(status for status in Status if status.terminal)
TOKENS = {"prompt": "tokens_in", "output": "tokens_out", "cached": "tokens_cached"}
GIVEN_BACK = ("error", "busy", "drain")
BREAKERS = {"closed": 0, "half-open": 1, "open": 2}
TIMES = {"wait": c.WAIT, "ttft": c.TTFT, "tpot": c.TPOT, "e2e": c.E2E}


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter of the queue's `stats` (docs/architecture.md) whose name ends in a label's value: `prefix:value`."""

    family: Family
    prefix: str
    values: tuple[str, ...] = ()  # that are shown from the start


BY_WORD = (
    Counted(c.RETRIES, "retried:", GIVEN_BACK),
    Counted(c.BREAKER_EVENTS, "breaker:", ("opened", "probes", "closed")),
    Counted(c.MENDED, "reconciled:"),
    Counted(c.HANDED_ON, "handed_on:"),
    Counted(c.VERDICTS, "judged:"),
)
BY_CLASS = (
    (c.ACCEPTED, "enqueued"),
    (c.CLAIMS, "claimed"),
    (c.PROMOTIONS, "promoted"),
    (c.DEAD_LETTERS, "dead"),
)
PLAIN = (
    (c.EXPIRED_LEASES, "deaths"),
    (c.RESCUED, "rescued"),
    (c.SHARD_STEALS, "stolen_shard"),
    (c.PREEMPTIONS, "retried:preempt"),
    (c.PREFIX_SAVED, "tokens_cached"),
)
VERDICTS = {"succeeded": "kept", "escalated": "handed_on"}


def add_pool(samples: Samples, view: PoolView, *, oldest_s: Sequence[float | None]) -> None:
    """`oldest_s`: by class."""
    _state(samples, view)
    for service_class in ServiceClass:
        oldest = oldest_s[service_class]
        samples.add(c.QUEUE_OLDEST, 0.0 if oldest is None else oldest, view.pool, service_class.name)
        _by_class(samples, view, service_class=service_class)
    for family, name in PLAIN:
        samples.add(family, view.counters.get(name, 0), view.pool)
    for kind, name in TOKENS.items():
        samples.add(c.TOKENS, view.counters.get(name, 0), view.pool, kind)
    for counted in BY_WORD:
        _by_word(samples, view, counted=counted)
    add_workers(samples, view)
    add_balance(samples, view)


def _state(samples: Samples, view: PoolView) -> None:
    pool = view.pool
    states = [worker.state for worker in view.workers]
    for state in sorted({"ready", *states}):
        samples.add(c.WORKERS, states.count(state), pool, state)
    samples.add(c.PROMOTED_JOBS, view.promoted, pool)
    samples.add(c.DELAYED_JOBS, view.delayed, pool)
    samples.add(c.RUNNING_JOBS, view.running, pool)
    samples.add(c.DEAD_JOBS, view.dead, pool)
    samples.add(c.SLOTS, view.slots, pool)
    samples.add(c.BUSY_SLOTS, sum(worker.busy_slots for worker in view.ready_workers), pool)


def _by_class(samples: Samples, view: PoolView, *, service_class: ServiceClass) -> None:
    counters, place = view.counters, (view.pool, service_class.name)
    samples.add(c.QUEUE_JOBS, queued(view, service_class), *place)
    samples.add(c.QUEUE_SECONDS, queued_s(view, service_class), *place)
    for family, name in BY_CLASS:
        samples.add(family, counters.get(f"{name}:{service_class:d}", 0), *place)
    for status in ENDS:
        samples.add(c.ENDED, counters.get(f"{status}:{service_class:d}", 0), *place, status)
    for where in ("local", "stolen", "missed"):
        samples.add(c.PREFIX_CLAIMS, counters.get(f"{where}:{service_class:d}", 0), *place, where)


def _by_word(samples: Samples, view: PoolView, *, counted: Counted) -> None:
    found = {name.removeprefix(counted.prefix) for name in view.counters if name.startswith(counted.prefix)}
    for word in sorted({*counted.values, *found} - {"preempt"}):
        value = view.counters.get(counted.prefix + word, 0)
        shown = VERDICTS.get(word, word) if counted.family is c.VERDICTS else word
        samples.add(counted.family, value, view.pool, shown)


def add_workers(samples: Samples, view: PoolView) -> None:
    """The first MOST_WORKERS by their names."""
    for worker in sorted(view.workers, key=lambda worker: worker.worker_id)[: c.MOST_WORKERS]:
        place = (view.pool, worker.worker_id)
        samples.add(c.WORKER_SLOTS, worker.slots, *place)
        samples.add(c.WORKER_BUSY, worker.busy_slots, *place)
        samples.add(c.WORKER_SECONDS, worker.predicted_s, *place)
        samples.add(c.WORKER_BREAKER, BREAKERS.get(worker.breaker, 0), *place)
        if worker.kv_used_share is not None:
            samples.add(c.WORKER_KV, worker.kv_used_share, *place)
        if worker.tpot_s is not None:
            samples.add(c.WORKER_TPOT, worker.tpot_s, *place)


def add_balance(samples: Samples, view: PoolView) -> None:
    found = judge(view)
    for of, spread in (("busy", found.busy), ("kv", found.kv), ("predicted", found.predicted)):
        if spread is not None:
            samples.add(c.MAX_OVER_MEAN, spread.max_over_mean, view.pool, of)
            samples.add(c.VARIATION, spread.variation, view.pool, of)
            samples.add(c.JAIN, spread.jain, view.pool, of)
    samples.add(c.UNEVEN, float(found.uneven), view.pool)
    for cause in found.causes[: c.MOST_WORKERS]:
        samples.add(c.CAUSE, 1.0, view.pool, cause.worker, cause.reason)


def add_books(samples: Samples, books: Mapping[str, Book], *, only: str | None = None) -> None:
    """By pool: times by class, and what was used by class and tenant. `only`: the tenant that may be named."""
    shown = _largest(books) if only is None else {only}
    for pool, book in books.items():
        for (what, service_class), histogram in sorted(book.times.items()):
            samples.add_histogram(TIMES[what], histogram, pool, service_class.name)
        if book.reading.count:
            samples.add_histogram(c.READING, book.reading, pool)
        sums: dict[tuple[ServiceClass, str], Used] = {}
        for (tenant, service_class), used in book.used.items():
            place = service_class, tenant if tenant in shown else c.OTHER
            sums[place] = sums.get(place, Used()) + used
        for (service_class, tenant), used in sorted(sums.items()):
            _used(samples, used, place=(pool, service_class.name, tenant))


def _used(samples: Samples, used: Used, *, place: tuple[str, str, str]) -> None:
    samples.add(c.TENANT_REQUESTS, used.requests, *place)
    samples.add(c.TENANT_TOKENS, used.prompt_tokens, *place, "prompt")
    samples.add(c.TENANT_TOKENS, used.output_tokens, *place, "output")
    samples.add(c.TENANT_TOKENS, used.cached_tokens, *place, "cached")
    samples.add(c.GPU_SECONDS, used.gpu_s, *place)
    samples.add(c.COST, used.usd, *place)


def _largest(books: Mapping[str, Book]) -> set[str]:
    """Tenants by the GPU time that they used of all pools; ties by name."""
    used: dict[str, int] = {}
    for book in books.values():
        for (tenant, _), amount in book.used.items():
            used[tenant] = used.get(tenant, 0) + amount.gpu_us
    return set(sorted(used, key=lambda tenant: (-used[tenant], tenant))[: c.MOST_TENANTS])


def add_lessons(samples: Samples, lessons: Mapping[str, Lessons]) -> None:
    """By pool, learned from finished jobs by one process for all. A pool that has finished none has no ratio."""
    for pool, each in lessons.items():
        for of, error in (("run_s", each.drift.run), ("output_tokens", each.drift.output)):
            if error is not None:
                samples.add(c.FORECAST_ERROR, round(math.exp(error), 4), pool, of)
        samples.add(c.FORECAST_OUTCOMES, each.timing.samples, pool)
