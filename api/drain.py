"""How fast a pool's queue empties, measured while something waits in it. Pure; time is an argument.

A queue that is empty most of the time passes on what arrives, which says nothing about what its workers could do. So only
intervals count at whose both ends jobs waited. They are added up per slot, for workers come and go.
"""

import math
from dataclasses import dataclass, field

from broker.fleet import PoolView
from broker.job import ServiceClass

MEMORY_S = 15.0  # a second of measure weighs 1/e after this
MAX_INTERVAL_S = 10.0  # what waits at both ends of a longer one need not have waited in between
ENOUGH_S = 3.0  # of measure, in today's weight, to refuse somebody for it


@dataclass(slots=True)
class Flow:
    """Sums over the intervals that count; older ones weigh less. `run_s`: predicted seconds of jobs that were claimed."""

    jobs: float = 0.0
    run_s: float = 0.0
    slot_s: float = 0.0
    over_s: float = 0.0

    def faded(self, dt_s: float) -> "Flow":
        keep = math.exp(-dt_s / MEMORY_S)
        return Flow(self.jobs * keep, self.run_s * keep, self.slot_s * keep, self.over_s * keep)

    def add(self, *, jobs: float, run_s: float, slots: int, dt_s: float) -> None:
        self.jobs += jobs
        self.run_s += run_s
        self.slot_s += slots * dt_s
        self.over_s += dt_s


@dataclass(slots=True)
class Drain:
    """`whole`: of the pool while anything is ready; `classes`: of each while it waits."""

    whole: Flow = field(default_factory=Flow)
    classes: tuple[Flow, ...] = field(default_factory=lambda: tuple(Flow() for _ in ServiceClass))

    def after(self, before: PoolView, now: PoolView, *, dt_s: float) -> "Drain":
        """With the interval between two looks."""
        drain = Drain(self.whole.faded(dt_s), tuple(flow.faded(dt_s) for flow in self.classes))
        if not 0 < dt_s <= MAX_INTERVAL_S or before.paused or now.paused or not now.slots:
            return drain
        left = [left_queue(now, c) - left_queue(before, c) for c in ServiceClass]
        run_s = [max(0.0, claimed_s(now, c) - claimed_s(before, c)) for c in ServiceClass]
        for c in ServiceClass:
            if queued(before, c) and queued(now, c):
                drain.classes[c].add(jobs=max(0.0, left[c]), run_s=run_s[c], slots=now.slots, dt_s=dt_s)
        if ready(before) and ready(now):
            drain.whole.add(jobs=max(0.0, sum(left)), run_s=sum(run_s), slots=now.slots, dt_s=dt_s)
        return drain

    def jobs_per_s(self, slots: int, service_class: ServiceClass | None = None) -> float | None:
        """That leave the queue; None if it has not been measured, or nothing left."""
        flow = self.whole if service_class is None else self.classes[service_class]
        return slots * flow.jobs / flow.slot_s if flow.slot_s and flow.jobs else None

    def run_s_per_s(self, slots: int, service_class: ServiceClass | None = None) -> float | None:
        """Predicted seconds that are claimed per second; None as above."""
        flow = self.whole if service_class is None else self.classes[service_class]
        return slots * flow.run_s / flow.slot_s if flow.slot_s and flow.run_s else None

    @property
    def is_sure(self) -> bool:
        """Whether there is enough measure to refuse somebody for it."""
        return self.whole.over_s >= ENOUGH_S


def ready(view: PoolView) -> int:
    """Jobs that a worker could claim."""
    return sum(view.waiting) + view.promoted


def queued(view: PoolView, service_class: ServiceClass) -> float:
    """Jobs of a class that wait, for whatever: their turn, a retry's delay, a tenant's cap."""
    return view.counters.get(f"queued:{service_class:d}", 0.0)


def queued_s(view: PoolView, service_class: ServiceClass) -> float:
    """Their predicted seconds."""
    return view.counters.get(f"queued_ms:{service_class:d}", 0.0) / 1000


def left_queue(view: PoolView, service_class: ServiceClass) -> float:
    """Jobs that have ever left the queue, less those that came back."""
    return view.counters.get(f"enqueued:{service_class:d}", 0.0) - queued(view, service_class)


def claimed_s(view: PoolView, service_class: ServiceClass) -> float:
    """Predicted seconds of all jobs that have been claimed, less those that came back."""
    c = f"{service_class:d}"
    return (view.counters.get(f"claimed_ms:{c}", 0.0) - view.counters.get(f"returned_ms:{c}", 0.0)) / 1000
