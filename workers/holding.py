"""One running job in a worker's ledger: what it holds of the engine, and what stopping it would waste. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.job import Lease, ServiceClass
from workers.kv_pages import PAGE_TOKENS, paged
from workers.pace import Pace

MAX_PREEMPTS = 2  # of one job: a job that was stopped twice runs to its end
NEAR_END = 0.25  # of the predicted run; a job with less before it is stopped last
BULK = (ServiceClass.P2, ServiceClass.P3)


@dataclass(slots=True)
class Holding:
    """`since`, `first_at`, `grown_at`: monotonic seconds. `page`: of the engine's cache, tokens. `output`: tokens that were seen. `leaving`: it has been told to stop."""

    lease: Lease
    since: float
    page: int = PAGE_TOKENS
    output: int = 0
    first_at: float | None = None
    grown_at: float = 0.0  # when its last tokens came
    leaving: bool = False
    is_bulk: bool = field(init=False)
    prompt_tokens: int = field(init=False)
    predicted_output: int = field(init=False)

    def __post_init__(self) -> None:
        need, prompt = self.lease.kv_tokens, self.lease.prompt_tokens
        self.is_bulk = self.lease.service_class in BULK
        self.prompt_tokens = min(prompt, need) if need else prompt
        self.predicted_output = max(0, need - self.prompt_tokens)

    @property
    def is_read(self) -> bool:
        """A connection has seen its first byte: it cannot be begun again."""
        return self.lease.attached and self.first_at is not None

    def is_prefilling(self, pace: Pace, *, now: float) -> bool:
        """Its first token has not come; where nobody would see it, not yet by the engine's pace."""
        if self.first_at is not None:
            return False
        return self.lease.stream or now - self.since < pace.prefill_s(self.prompt_tokens)

    def live_tokens(self, pace: Pace, *, now: float) -> int:
        """In the cache now, in whole pages. An answer that comes as a whole is believed to grow at the engine's pace."""
        output = float(self.output)
        if self.first_at is None and not self.lease.stream:
            decoding_s = now - self.since - pace.prefill_s(self.prompt_tokens)
            output = min(self.predicted_output, self.lease.choices * pace.decode_per_s * max(0.0, decoding_s))
        return paged(self.prompt_tokens + output, self.page)

    def growth(self, pace: Pace, *, now: float) -> tuple[int, int]:
        """Live tokens, and those that are still to come by its prediction; one more page if it has outgrown that."""
        live = self.live_tokens(pace, now=now)
        at_end = self.prompt_tokens + self.predicted_output * pace.length_share
        return live, max(self.page, paged(at_end, self.page) - live)


def cheapest(running: Iterable[Holding], *, now: float) -> Holding | None:
    """Whom to stop: P3 before P2; not who is nearly done; then who loses least work.

    None that was stopped often, that somebody reads already, or that is being stopped.
    """
    stoppable = [
        holding
        for holding in running
        if holding.is_bulk
        and holding.lease.preempts < MAX_PREEMPTS
        and not (holding.is_read or holding.leaving)
    ]

    def waste(holding: Holding) -> tuple[int, bool, float, str]:
        ran_s, run_s = now - holding.since, holding.lease.run_s
        near_end = (1 - NEAR_END) * run_s < ran_s < run_s
        return -holding.lease.service_class, near_end, ran_s, holding.lease.job_id

    return min(stoppable, key=waste, default=None)
