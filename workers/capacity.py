"""What a worker has, what it may ask the queue for, and whom it stops for somebody more urgent. Pure: time is an argument.

The live worker and the replay run these lines.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.job import Lease, ServiceClass
from broker.policy import Room

MAX_PREEMPTS = 2  # of one job: a job that was stopped twice runs to its end
BULK = (ServiceClass.P2, ServiceClass.P3)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a worker's room is used. `reserve`: share of slots that P2 and P3 never take, 0 to 1.

    `kv_tokens`: size of the engine's KV cache, None if it is not known. `preempt_after_s`: how long a P0 job waits before
    batch work is stopped for it; None: never.
    """

    slots: int
    reserve: float = 0.0
    kv_tokens: int | None = None
    preempt_after_s: float | None = 0.25

    @property
    def bulk_slots(self) -> int:
        return self.slots - math.ceil(self.reserve * self.slots)


@dataclass(slots=True)
class Holding:
    """One running job. `since`: monotonic seconds; `begun`: a connection has seen its first byte."""

    lease: Lease
    since: float
    begun: bool = False


@dataclass(slots=True)
class Ledger:
    """Who holds the engine's slots (concurrent requests) and KV tokens. A job holds both from lease to end."""

    plan: Plan
    _held: dict[str, Holding] = field(default_factory=dict)

    @property
    def busy(self) -> int:
        return len(self._held)

    @property
    def free(self) -> int:
        return max(0, self.plan.slots - self.busy)

    def take(self, lease: Lease, *, now: float) -> None:
        self._held[lease.job_id] = Holding(lease, now)

    def begin(self, job_id: str) -> None:
        """The job's answer has begun to reach its caller."""
        if job_id in self._held:
            self._held[job_id].begun = True

    def give_back(self, job_id: str) -> None:
        """Idempotent."""
        self._held.pop(job_id, None)

    def room(self) -> Room:
        """What to claim with. An idle engine takes any job: it alone can say that it is too big."""
        bulk = sum(holding.lease.service_class in BULK for holding in self._held.values())
        total = self.plan.kv_tokens
        held = sum(holding.lease.kv_tokens for holding in self._held.values())
        return Room(
            slots=self.free,
            bulk_slots=max(0, min(self.free, self.plan.bulk_slots - bulk)),
            kv_tokens=None if total is None or not self._held else max(0, total - held),
            kv_total_tokens=total,
        )

    def victim(self) -> str | None:
        """Whom to stop when P0 waits and nothing fits: see `cheapest`."""
        return cheapest(self._held.values())


def cheapest(running: Iterable[Holding]) -> str | None:
    """The P3 job that loses least work, else the P2 job; none that was stopped often, or that somebody reads already."""
    stoppable = [
        holding
        for holding in running
        if holding.lease.service_class in BULK
        and holding.lease.preempts < MAX_PREEMPTS
        and not (holding.lease.attached and holding.begun)
    ]
    worst_first = sorted(stoppable, key=lambda h: (-h.lease.service_class, -h.since, h.lease.job_id))
    return worst_first[0].lease.job_id if worst_first else None
