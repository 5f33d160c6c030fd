"""How evenly work lies on the workers of a pool, and a plain sentence why it does not. Pure, and without memory: workers' records
carry their own means, so that every process that looks says the same.

Figures are over the last minute; causes over the last ten seconds, so that they are named soon.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from broker.fleet import LoadMeans, PoolView, WorkerRecord

SLOW_TIMES = 2.0  # as long for a token as the others
LONG_TIMES = 3.0  # as long as the others' jobs; with LONG_JOBS of them it holds
LONG_JOBS = 2
HEAVY_TIMES = 2.0  # as many predicted seconds a slot as the pool's mean
BUSY_TIMES, BUSY_MORE, BUSY_JOBS = 1.5, 0.25, 2.0  # of the mean busy share; above it; jobs above it
KV_FULL, KV_MORE = 0.8, 0.3


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the workers. All are 1, 0 and 1 where it is the same for all.

    `jain`: Jain's fairness index, 1/n where one has everything. Source: Jain, Chiu, Hawe, DEC TR-301 (1984).
    """

    max_over_mean: float
    variation: float  # standard deviation over mean
    jain: float


@dataclass(frozen=True, slots=True)
class Cause:
    """`reason`: slow, long_jobs, busy or kv; or why it takes no jobs: its state, or `breaker`."""

    worker: str
    reason: str
    text: str


OUT = (
    "paused",
    "draining",
    "unavailable",
    "starting",
    "breaker",
)  # reasons that make a pool smaller, not uneven


@dataclass(frozen=True, slots=True)
class Balance:
    """Of one pool. A spread is None where nobody has any of the figure, or it is not known."""

    busy: Spread | None
    kv: Spread | None
    predicted: Spread | None  # predicted seconds in flight, for each slot
    most_loaded: str | None
    least_loaded: str | None
    causes: tuple[Cause, ...]

    @property
    def uneven(self) -> bool:
        return any(cause.reason not in OUT for cause in self.causes)

    @property
    def why(self) -> str:
        return "; ".join(cause.text for cause in self.causes)


def spread(values: Sequence[float]) -> Spread | None:
    mean = fmean(values) if values else 0.0
    if mean <= 0:
        return None
    squares = fmean(value * value for value in values)
    variation = math.sqrt(max(0.0, squares - mean * mean)) / mean
    return Spread(round(max(values) / mean, 4), round(variation, 4), round(mean * mean / squares, 4))


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A worker that may be given jobs, with its means."""

    record: WorkerRecord
    lately: LoadMeans
    minute: LoadMeans

    @property
    def name(self) -> str:
        return self.record.worker_id

    @property
    def slots(self) -> int:
        return max(1, self.record.slots)

    @property
    def heavy_s(self) -> float:
        """Predicted seconds in flight, for each slot."""
        return self.lately.predicted_s / self.slots

    @property
    def load(self) -> float:
        """The fuller of its slots and its KV cache."""
        return max(self.lately.busy_share, self.lately.kv_share or 0.0)


def judge(view: PoolView) -> Balance:
    """The pool as its workers' records tell it."""
    loaded = [_loaded(worker) for worker in view.ready_workers]
    caches = [each.minute.kv_share for each in loaded if each.minute.kv_share is not None]
    ranked = sorted(loaded, key=lambda each: (round(each.load, 1), each.heavy_s), reverse=True)
    return Balance(
        busy=spread([each.minute.busy_share for each in loaded]),
        kv=spread(caches),
        predicted=spread([each.minute.predicted_s / each.slots for each in loaded]),
        most_loaded=ranked[0].name if len(ranked) > 1 else None,
        least_loaded=ranked[-1].name if len(ranked) > 1 else None,
        causes=(*_inside(loaded), *_out(view.workers)),
    )


def _loaded(worker: WorkerRecord) -> _Loaded:
    """A worker that tells no means is taken as it is now."""
    share = worker.busy_slots / worker.slots if worker.slots else 0.0
    now = LoadMeans(share, worker.kv_used_share, worker.predicted_s)
    return _Loaded(worker, worker.lately or now, worker.minute or now)


@dataclass(frozen=True, slots=True)
class _All:
    """What a worker is compared with: those that have been there for some seconds, and the paces of all."""

    loaded: Sequence[_Loaded]
    paces: Sequence[float]  # in order
    busy: float  # sums
    heavy_s: float
    caches: Sequence[float]

    @property
    def n(self) -> int:
        return len(self.loaded)


def _inside(loaded: Sequence[_Loaded]) -> Iterable[Cause]:
    """One for each worker that stands out, the reason that explains most. Who has just come may be slow, but not yet idle."""
    settled = [each for each in loaded if each.record.lately is not None]
    everybody = _All(
        settled,
        paces=sorted(each.record.tpot_s for each in loaded if each.record.tpot_s),
        busy=sum(each.lately.busy_share for each in settled),
        heavy_s=sum(each.heavy_s for each in settled),
        caches=[each.lately.kv_share for each in settled if each.lately.kv_share is not None],
    )
    for each in loaded:
        rules = RULES if each.record.lately is not None and everybody.n > 1 else (_slow,)
        causes = (rule(each, everybody) for rule in rules)
        yield from [cause for cause in causes if cause is not None][:1]


def _slow(each: _Loaded, everybody: _All) -> Cause | None:
    pace, paces = each.record.tpot_s, everybody.paces
    if not pace or len(paces) < 2:
        return None
    times = pace / _median_without(pace, paces)
    if times < SLOW_TIMES:
        return None
    return Cause(each.name, "slow", f"{each.name} is {times:.1f}x slower per token than the others")


def _median_without(value: float, ordered: Sequence[float]) -> float:
    """Of the others in an ordered sequence, without going through it."""
    left_out, rest = bisect_left(ordered, value), len(ordered) - 1

    def at(index: int) -> float:
        return ordered[index + (index >= left_out)]

    return (at((rest - 1) // 2) + at(rest // 2)) / 2


def _long_jobs(each: _Loaded, everybody: _All) -> Cause | None:
    if not each.heavy_s or each.heavy_s < HEAVY_TIMES * everybody.heavy_s / everybody.n:
        return None
    others = (other.record.jobs.values() for other in everybody.loaded if other is not each)
    theirs = [run_s for by_class in others for jobs in by_class for run_s in jobs]
    usual_s = median(theirs) if theirs else float("inf")
    long = {
        name: some
        for name, jobs in each.record.jobs.items()
        if (some := [run_s for run_s in jobs if run_s >= LONG_TIMES * max(1.0, usual_s)])
    }
    if sum(map(len, long.values())) < LONG_JOBS:
        return None
    held = " and ".join(f"{len(some)} long {name}" for name, some in sorted(long.items()))
    total_s = sum(map(sum, long.values()))
    text = (
        f"{each.name} holds {held} jobs ({total_s:.0f} predicted s; a job of the others has {usual_s:.0f} s)"
    )
    return Cause(each.name, "long_jobs", text)


def _busy(each: _Loaded, everybody: _All) -> Cause | None:
    mine, mean = each.lately.busy_share, everybody.busy / everybody.n
    over = mine - mean
    if over < BUSY_MORE or mine < BUSY_TIMES * mean or over * each.slots < BUSY_JOBS:
        return None
    rest = (everybody.busy - mine) / (everybody.n - 1)
    return Cause(each.name, "busy", f"{each.name} is {mine:.0%} busy, the others {rest:.0%}")


def _kv(each: _Loaded, everybody: _All) -> Cause | None:
    mine, caches = each.lately.kv_share, everybody.caches
    if mine is None or len(caches) < 2:
        return None
    rest = (sum(caches) - mine) / (len(caches) - 1)
    if mine < KV_FULL or mine - rest < KV_MORE:
        return None
    return Cause(each.name, "kv", f"the KV cache of {each.name} is {mine:.0%} full, the others' {rest:.0%}")


RULES: tuple[Callable[[_Loaded, _All], Cause | None], ...] = (_slow, _long_jobs, _busy, _kv)


def _out(workers: Iterable[WorkerRecord]) -> Iterable[Cause]:
    """Workers that live and get no jobs."""
    for worker in workers:
        name = worker.worker_id
        if worker.breaker == "open":
            yield Cause(name, "breaker", f"{name} gets nothing, as too many of its requests failed")
        elif worker.state == "unavailable":
            yield Cause(name, worker.state, f"{name} cannot reach its engine")
        elif worker.state != "ready":
            yield Cause(name, worker.state, f"{name} is {worker.state}")
