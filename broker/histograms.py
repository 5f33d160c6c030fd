"""Distributions of times as counts in fixed buckets, so that they can be added up: over workers, queues, minutes. Pure.

The bounds are declared here once: workers count by them, `/metrics` shows them, percentiles are read off them. Whoever changes
them gives the metric another name, for what is in Redis was counted by the old ones.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

READ = "read"
# Seconds. wait: from accepted to claimed. ttft: from accepted to the first token. tpot: per token after it. e2e: to the end.
# read: an engine's time to the first token, per 1,000 prompt tokens that it had not cached; of long prompts.
# One set for what is compared: a job's wait is never shown as longer than its whole time.
LONG = (
    0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1800.0, 7200.0,
)  # fmt: skip
BOUNDS: dict[str, tuple[float, ...]] = {
    "wait": LONG,
    "ttft": LONG,
    "tpot": (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
    "e2e": LONG,
    READ: tuple(round(0.005 * 1.5**n, 6) for n in range(20)),
}


def bucket_of(what: str, seconds: float) -> int:
    """The first bucket whose bound is not below it; one behind the last bound for what is above all."""
    return bisect_left(BOUNDS[what], seconds)


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]`: times up to `bounds[i]` and above the bound before it; the last: above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, times up to it), the last bound being infinite: as Prometheus wants it."""
        running, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            found.append((bound, running))
        return found

    def quantile(self, share: float) -> float | None:
        """Seconds that `share` of the times do not exceed, straight between bounds; None if there are none.

        Above the last bound nothing is known: that bound. Source: Prometheus' histogram_quantile.
        """
        rank, low, running = share * self.count, 0.0, 0
        if not self.count:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and running + count >= rank:
                return low + (bound - low) * max(0.0, rank - running) / count
            low, running = bound, running + count
        return self.bounds[-1]


def empty(what: str) -> Histogram:
    return Histogram(BOUNDS[what], (0,) * (len(BOUNDS[what]) + 1))


def added(what: str, some: Iterable[Histogram]) -> Histogram:
    """All of them as one."""
    parts: Sequence[Histogram] = [empty(what), *some]
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
    return Histogram(BOUNDS[what], counts, sum(part.sum_s for part in parts))
