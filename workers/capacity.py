"""What a worker has, what it may ask the queue for, and whom it stops for somebody more urgent. Pure: time is an argument.

The live worker and the replay run these lines. docs/capacity.md says what they promise.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from broker.job import Lease
from broker.policy import Room
from workers.aimd import Concurrency
from workers.engine import EngineLoad, Usage
from workers.holding import MAX_PREEMPTS, Holding, cheapest
from workers.kv_cache import Cache
from workers.kv_pages import PAGE_TOKENS, paged
from workers.pace import Pace
from workers.reserve import Reserve

__all__ = ["MAX_PREEMPTS", "Grown", "Ledger", "Plan"]
USUAL_NEED_TOKENS = 1000.0
SMOOTH = 0.2
MEASURED_TOKENS = 8  # of an answer, at least, for its pace to tell anything
JOBS_TOLD = 32
CHEAP_S = 1.0  # that a stopped job has run
DEAR_TIMES = 1.4


@dataclass(frozen=True, slots=True)
class Plan:
    """How a worker's room is used. `reserve`: share of slots that P2 and P3 never take, 0 to 1; None: adaptive.

    `kv_tokens`: size of the engine's KV cache, None if it is not known; in pages of `page_tokens`. `preempt_after_s`: how long a P0 job waits before
    batch work is stopped for it; None: never. `reserve_most`: bound of the adaptive one. `prefill_tokens`: of batch
    prompts that the engine reads at one time; None: any. `finds_slots`: `slots` is a guess to start from.
    """

    slots: int
    reserve: float | None = None
    kv_tokens: int | None = None
    page_tokens: int = PAGE_TOKENS
    preempt_after_s: float | None = 0.15
    reserve_most: float = 0.25
    prefill_tokens: int | None = None
    finds_slots: bool = False


class Grown(Enum):
    """After which there may be something to decide."""

    BEGUN = "its first token: the engine has read its prompt"
    PAGE = "it takes another page of the cache"


@dataclass(slots=True)
class Ledger:
    """Who holds the engine's slots (concurrent answers) and KV tokens. A job holds both from lease to end."""

    plan: Plan
    pace: Pace = field(default_factory=Pace)
    reserve: Reserve = field(init=False)
    concurrency: Concurrency = field(init=False)
    cache: Cache | None = field(init=False)
    written_tokens: int = 0  # by all jobs so far, without each one's first
    writing_s: float = 0.0  # that took, summed over jobs
    _held: dict[str, Holding] = field(default_factory=dict)
    _urgent_need: float = USUAL_NEED_TOKENS

    def __post_init__(self) -> None:
        plan = self.plan
        self.reserve = Reserve(plan.reserve, plan.reserve_most)
        self.concurrency = Concurrency(None if plan.finds_slots else plan.slots, start=plan.slots)
        self.cache = None if plan.kv_tokens is None else Cache(plan.kv_tokens)

    @property
    def slots(self) -> int:
        """How many answers at once the engine is trusted with now."""
        return self.concurrency.now

    @property
    def busy(self) -> int:
        return self._slots_of(self._all())

    @property
    def free(self) -> int:
        return max(0, self.slots - self.busy)

    @property
    def predicted_s(self) -> float:
        """Predicted seconds in flight: of the whole runs of what is held."""
        return sum(holding.lease.run_s for holding in self._all())

    def jobs(self) -> dict[str, list[float]]:
        """By class the predicted seconds of what is held, longest first, JOBS_TOLD at most of each."""
        found: dict[str, list[float]] = {}
        for lease in sorted((h.lease for h in self._all()), key=lambda lease: -lease.run_s):
            of_class = found.setdefault(lease.service_class.name, [])
            if len(of_class) < JOBS_TOLD:
                of_class.append(round(lease.run_s, 1))
        return found

    def take(self, lease: Lease, *, now: float) -> None:
        holding = self._held[lease.job_id] = Holding(lease, now, self.plan.page_tokens)
        if not holding.is_bulk:
            self._urgent_need += SMOOTH * (lease.kv_tokens - self._urgent_need)
        if not self.free:
            self.concurrency.full()

    def grow(self, job_id: str, tokens: int, *, now: float) -> Grown | None:
        """Tokens of its answer have come; None: within the page that it holds already."""
        holding = self._held.get(job_id)
        if holding is None:
            return None
        before, first = paged(holding.output, holding.page), holding.first_at is None
        holding.output += tokens
        if not first:
            self._wrote(tokens, (now - holding.grown_at) * holding.lease.choices)
        holding.grown_at = now
        if first:
            holding.first_at = now
            self.pace.saw_first(holding.prompt_tokens, now - holding.since)
            self.concurrency.saw_first(now - holding.since, prompt_tokens=holding.prompt_tokens)
        if first:
            return Grown.BEGUN
        return Grown.PAGE if paged(holding.output, holding.page) > before else None

    def learn(self, job_id: str, usage: Usage | None, *, now: float) -> None:
        """Its answer is complete. It still has to be given back."""
        holding = self._held.get(job_id)
        tokens = 0 if holding is None else holding.output if usage is None else usage.completion_tokens
        if holding is None or tokens <= 0:
            return
        begun = holding.first_at
        if begun is None:  # it came as a whole
            begun = min(now, holding.since + self.pace.prefill_s(holding.prompt_tokens))
            self._wrote(tokens, (now - begun) * holding.lease.choices)
        each = tokens / holding.lease.choices
        self.pace.saw_answer(round(each), now - begun)
        self.pace.saw_length(tokens, predicted=holding.predicted_output)
        if each >= MEASURED_TOKENS:
            self.concurrency.saw_answer((now - begun) / each)

    def _wrote(self, tokens: int, seconds: float) -> None:
        self.written_tokens += tokens
        self.writing_s += seconds

    def give_back(self, job_id: str) -> None:
        """Idempotent."""
        self._held.pop(job_id, None)

    def observe(self, load: EngineLoad, *, now: float) -> None:
        """The engine's word on its cache, as of now; a load that is too old has to be left out by the caller."""
        if self.cache is not None:
            self.cache.observe(load.kv_used_share, held=self._all(), pace=self.pace, now=now)

    def room(self, *, now: float) -> Room:
        """What to claim with. An idle engine takes any one job: it alone can say that it is too big."""
        kv_tokens = None if self.cache is None else self.cache.free_tokens(self._all(), self.pace, now=now)
        return Room(
            slots=self.free,
            bulk_slots=min(self.free, self._bulk_slots(kv_tokens, now=now)),
            kv_tokens=kv_tokens,
            kv_total_tokens=self.plan.kv_tokens,
            prefill_tokens=self._prefill_left(now),
            prefill_total_tokens=self.plan.prefill_tokens,
            total_slots=self.slots,
        )

    def reserved_slots(self, *, now: float) -> int:
        """That batch work leaves to interactive jobs."""
        return self.reserve.kept(self.slots, now=now)

    def prefill_tokens(self, *, now: float) -> int:
        """Of the prompts that the engine is reading."""
        return sum(h.prompt_tokens for h in self._all() if h.is_prefilling(self.pace, now=now))

    def next_room_s(self, *, now: float) -> float | None:
        """When a batch prompt will be through of which nobody will be told; None: no such one is waited for."""
        if self.plan.prefill_tokens is None:
            return None
        silent = [h for h in self._reading(now) if not h.lease.stream]
        ends = (h.since + self.pace.prefill_s(h.prompt_tokens) - now for h in silent)
        return min(ends, default=None)

    def victim(self, *, now: float) -> str | None:
        """Whom to stop when P0 waits and nothing fits: see `cheapest`."""
        found = cheapest(self._all(), now=now)
        return None if found is None else found.lease.job_id

    def patience_s(self, *, now: float) -> float | None:
        """How long a P0 job waits until this worker stops one for it; None: it will not.

        Who would waste much waits longer, so that a worker with a job that has just begun comes first.
        """
        victim, after_s = self.victim(now=now), self.plan.preempt_after_s
        if victim is None or after_s is None:
            return None
        return DEAR_TIMES * after_s if self.is_dear(victim, now=now) else after_s

    def is_dear(self, job_id: str, *, now: float) -> bool:
        """Stopping it would waste much."""
        return now - self._held[job_id].since > CHEAP_S

    def relief(self, *, now: float) -> str | None:
        """Whom to stop as the cache is nearly full, before the engine chooses somebody; None: nobody has to, or can."""
        short = self.cache is not None and self.cache.is_short(self._all(), self.pace, now=now)
        return self.victim(now=now) if short else None

    @property
    def is_clearing(self) -> bool:
        """Somebody who has been told to stop has not left yet."""
        return any(holding.leaving for holding in self._all())

    @property
    def restartable(self) -> list[str]:
        """Jobs that may be begun again elsewhere, and have not been told to stop."""
        return [h.lease.job_id for h in self._all() if not (h.is_read or h.leaving)]

    def stop(self, job_id: str) -> None:
        """It has been told to stop; what it holds is as good as free."""
        if job_id in self._held:
            self._held[job_id].leaving = True

    def missed(self, *, now: float) -> None:
        """A P0 job has waited as long as it may, and there is no slot."""
        self.reserve.missed(self.slots, now=now)

    def _all(self) -> Collection[Holding]:
        return tuple(self._held.values())  # copied at once: the heartbeat reads it from its thread

    def _slots_of(self, some: Collection[Holding]) -> int:
        most = self.slots
        return sum(min(holding.lease.choices, most) for holding in some)

    def _reading(self, now: float) -> list[Holding]:
        """Batch jobs whose prompts the engine has not read."""
        return [h for h in self._all() if h.is_bulk and h.is_prefilling(self.pace, now=now)]

    def _bulk_slots(self, kv_tokens: int | None, *, now: float) -> int:
        bulk = self._slots_of([h for h in self._all() if h.is_bulk])
        slots = self.reserve.bulk_slots(self.slots, free=self.free, bulk=bulk, now=now)
        kept = self.reserved_slots(now=now)
        if kv_tokens is not None and kept and kv_tokens <= kept * self._urgent_need:
            return 0
        return slots

    def _prefill_left(self, now: float) -> int | None:
        budget = self.plan.prefill_tokens
        return None if budget is None else max(0, budget - sum(h.prompt_tokens for h in self._reading(now)))
