"""A pool of workers on a virtual clock: real ledgers and means, jobs that write at a pace, heartbeats every few seconds."""

import random
from dataclasses import dataclass, field

from broker.balance import Balance, judge
from broker.fleet import PoolView, WorkerRecord
from broker.job import Lease
from tests.workers.leases import lease
from tests.workers.scripted import ScriptedEngine
from workers.capacity import Ledger, Plan
from workers.load_watch import LoadWatch
from workers.recent import EVERY_S, LATELY_S, MINUTE_S, Recent

BEAT_S = 10 / 3  # a lease of ten seconds
SLOTS = 8


@dataclass
class Replica:
    """One worker. `tpot_s`: its engine's pace, which a test may change while it runs."""

    name: str
    tpot_s: float = 0.02
    state: str = "ready"
    ledger: Ledger = field(default_factory=lambda: Ledger(Plan(SLOTS)))
    left: dict[str, float] = field(default_factory=dict)  # tokens still to write
    record: WorkerRecord | None = None

    def __post_init__(self) -> None:
        self.recent = Recent(self.ledger, LoadWatch(ScriptedEngine(), every_s=1.0))

    def take(self, held: Lease, *, tokens: float, now: float) -> None:
        self.ledger.take(held, now=now)
        self.left[held.job_id] = tokens

    def step(self, now: float) -> None:
        for job_id in list(self.left):
            self.ledger.grow(job_id, round(EVERY_S / self.tpot_s), now=now)
            self.left[job_id] -= EVERY_S / self.tpot_s
            if self.left[job_id] <= 0:
                self.ledger.give_back(job_id)
                del self.left[job_id]
        self.recent.sample(now=now)

    def beat(self, now: float) -> None:
        record = WorkerRecord(
            self.name, "p", "e", "m", SLOTS, self.ledger.busy, self.state, 1, "h",
            predicted_s=self.ledger.predicted_s, jobs=self.ledger.jobs(), tpot_s=self.recent.tpot_s(now=now),
            lately=self.recent.means(LATELY_S, now=now), minute=self.recent.means(MINUTE_S, now=now),
        )  # fmt: skip
        self.record = WorkerRecord.load(record.dump())


@dataclass
class SimulatedPool:
    """Short P0 jobs come at random and go to the worker with the most room, as in claim's placement."""

    replicas: list[Replica]
    jobs_per_s: float
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    made: int = 0

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / EVERY_S)):
            self.now += EVERY_S
            for _ in range(sum(self.rng.random() < self.jobs_per_s * EVERY_S / 8 for _ in range(8))):
                roomiest = max(self.replicas, key=lambda each: (each.ledger.free, self.rng.random()))
                if roomiest.ledger.free:
                    self.give(roomiest, 0, run_s=4.0, tokens=200)
            for each in self.replicas:
                each.step(self.now)
                if self.now % BEAT_S < EVERY_S:
                    each.beat(self.now)

    def give(self, replica: Replica, service_class: int, *, run_s: float, tokens: float) -> None:
        self.made += 1
        replica.take(lease(f"j{self.made}", service_class, run_s=run_s), tokens=tokens, now=self.now)

    @property
    def balance(self) -> Balance:
        records = [each.record for each in self.replicas if each.record]
        return judge(PoolView("p", records, [0] * 4, 0, 0, 0))

    def named_after_s(self, worker: str, reason: str, *, within_s: float) -> float:
        """How long from now until that worker is named for that reason; infinite if it is not within `within_s`."""
        began = self.now
        while self.now - began < within_s:
            self.run(EVERY_S)
            if any((cause.worker, cause.reason) == (worker, reason) for cause in self.balance.causes):
                return self.now - began
        return float("inf")
