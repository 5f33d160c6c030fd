"""What the same jobs would have used otherwise: without prefix reuse, and all on the larger model. Pure; docs/cost.md has the limits.

A pool's GPU time is taken to be  read * (prompt - cached) + write * output.  `read` is how fast its long prompts were read at best,
`write` follows from what the pool has used in all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.accounts import Book, Used

FAST = 0.1
LEAST = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """GPU-seconds per prompt token that was not cached, and per token of the answer."""

    read_s: float
    write_s: float

    def gpu_s(self, used: Used) -> float:
        return self.read_s * _fresh(used) + self.write_s * used.output_tokens


@dataclass(frozen=True, slots=True)
class Pool:
    """`larger`: the pool that its requests could have gone to instead; empty where there is none."""

    rates: Rates | None
    gpu_hour_usd: float = 0.0
    larger: str = ""

    def usd(self, gpu_s: float) -> float:
        return gpu_s / 3600 * self.gpu_hour_usd


@dataclass(frozen=True, slots=True)
class Bill:
    gpu_s: float
    usd: float

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(self.gpu_s + other.gpu_s, self.usd + other.usd)


@dataclass(frozen=True, slots=True)
class Instead:
    """`all_large` None: no route leads from a pool that was used to one whose rates are known."""

    actual: Bill
    no_prefix_reuse: Bill
    all_large: Bill | None


def rates(book: Book, *, assumed_s: float, gpus: int) -> Rates | None:
    """Of a pool from all that it has ever used. `assumed_s`: seconds per prompt token where no LEAST long prompts have told. None: it
    has written nothing yet.

    The fastest tenth counts: others waited for their turn in the engine as well. Reading is never taken to be more than there was.
    """
    used = book.all_used
    fresh = _fresh(used)
    if not used.output_tokens or not used.gpu_us:
        return None
    fast_s = book.reading.quantile(FAST) if book.reading.count >= LEAST else None
    reading = gpus * (assumed_s if fast_s is None else fast_s / 1000)
    reading = min(reading, used.gpu_s / fresh) if fresh else reading
    return Rates(reading, max(0.0, used.gpu_s - reading * fresh) / used.output_tokens)


def instead(used: Mapping[str, Used], pools: Mapping[str, Pool]) -> Instead:
    """`used`: by pool, of the jobs in question."""
    actual, uncached, large, moved = Bill(0.0, 0.0), Bill(0.0, 0.0), Bill(0.0, 0.0), False
    for name, each in used.items():
        pool = pools.get(name, Pool(None))
        bill, again_s = Bill(each.gpu_s, each.usd), 0.0
        if pool.rates is not None:
            again_s = pool.rates.read_s * each.cached_tokens
        actual, uncached = actual + bill, uncached + bill + Bill(again_s, pool.usd(again_s))
        larger = pools.get(pool.larger)
        if larger is not None and larger.rates is not None:
            there_s, moved = larger.rates.gpu_s(each), True
            bill = Bill(there_s, larger.usd(there_s))
        large += bill
    return Instead(actual, uncached, large if moved else None)


def _fresh(used: Used) -> int:
    return max(0, used.prompt_tokens - used.cached_tokens)
