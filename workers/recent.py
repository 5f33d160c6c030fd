"""A worker's own load over the last seconds and the last minute, for its record: who looks at a pool needs no history.

Sampled beside the work; read from the heartbeat's thread. Pure but for `run`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.fleet import LoadMeans
from workers.capacity import Ledger
from workers.engine import EngineLoad
from workers.load_watch import LoadWatch

EVERY_S = 0.5
LATELY_S, MINUTE_S = 10.0, 60.0
SETTLED_S = 5.0
MEASURED_TOKENS = 32  # below that a pace tells nothing


@dataclass(frozen=True, slots=True)
class _Sample:
    """`written_tokens`, `writing_s`: as the ledger's, from the worker's start."""

    at: float
    busy_share: float
    kv_share: float | None
    predicted_s: float
    written_tokens: int
    writing_s: float


@dataclass(slots=True)
class Recent:
    """Of one worker; times are monotonic seconds."""

    ledger: Ledger
    watch: LoadWatch
    _samples: deque[_Sample] = field(default_factory=deque)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.sample(now=time.monotonic())
            await asyncio.sleep(EVERY_S)

    def sample(self, *, now: float) -> None:
        ledger = self.ledger
        busy = ledger.busy
        found = _Sample(
            at=now,
            busy_share=busy / max(ledger.slots, busy),
            kv_share=self.kv_share(now=now),
            predicted_s=ledger.predicted_s,
            written_tokens=ledger.written_tokens,
            writing_s=ledger.writing_s,
        )
        self._samples.append(found)
        while self._samples[0].at < now - MINUTE_S:
            self._samples.popleft()

    def kv_share(self, *, now: float) -> float | None:
        return used_share(self.watch.seen(now=now), self.ledger.plan.kv_tokens)

    def means(self, seconds: float, *, now: float) -> LoadMeans | None:
        """Over the last `seconds`, or since the worker started; None until that is SETTLED_S ago."""
        some = self._since(now - seconds)
        if not some or now - some[0].at < SETTLED_S:
            return None
        caches = [sample.kv_share for sample in some if sample.kv_share is not None]
        return LoadMeans(
            busy_share=round(sum(sample.busy_share for sample in some) / len(some), 4),
            kv_share=round(sum(caches) / len(caches), 4) if caches else None,
            predicted_s=round(sum(sample.predicted_s for sample in some) / len(some), 2),
        )

    def tpot_s(self, *, now: float) -> float | None:
        """For each token of an answer after its first, over the latest span in which enough came; None if none did."""
        for seconds in (LATELY_S, MINUTE_S):
            some = self._since(now - seconds)
            tokens = some[-1].written_tokens - some[0].written_tokens if some else 0
            if tokens >= MEASURED_TOKENS:
                return round((some[-1].writing_s - some[0].writing_s) / tokens, 5)
        return None

    def _since(self, then: float) -> Sequence[_Sample]:
        samples = tuple(self._samples)  # copied at once: it is read from another thread
        return [sample for sample in samples if sample.at >= then]


def used_share(load: EngineLoad, kv_tokens: int | None) -> float | None:
    """Of the KV tokens that the worker plans with, which may be fewer than the engine has."""
    share, total = load.kv_used_share, load.kv_total_tokens
    if share is None or not kv_tokens or not total:
        return share
    return min(1.0, share * total / kv_tokens)
