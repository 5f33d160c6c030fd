"""The queue as the design describes it (section 3), in plain Python: what the state machine compares Redis with.

Time is three flags of a job: its delay has passed (`due`), its lease has run out, its deadline has passed.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

MAX_ERRORS = 1
MAX_DEATHS = 1


@dataclass
class Job:
    """`place`: the one set that holds it, among ready, delayed and leased; empty once it has ended."""

    job_id: str
    service_class: int
    cost_ms: int
    score: float
    attached: bool = False
    place: str = "ready"
    status: str = "queued"
    token: int = 0
    seq: int = 0
    attempts: int = 0
    errors: int = 0
    deaths: int = 0
    returns: int = 0
    due: bool = False
    lease_over: bool = False
    overdue: bool = False
    dead: bool = False
    redriven: bool = False
    chunks: list[tuple[int, int, bytes]] = field(default_factory=list)
    data: bytes | None = None

    @property
    def pending(self) -> bool:
        return self.status in ("queued", "running")

    @property
    def order(self) -> tuple[int, float, str]:
        """Strictly by class, then by score, ties by id (invariant 5)."""
        return (self.service_class, self.score, self.job_id)

    @property
    def begun(self) -> bool:
        """A connection has seen the first byte of this attempt."""
        return self.attached and self.seq > 0

    def holds(self, token: int) -> bool:
        return self.status == "running" and token == self.token


class Model:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.stats: Counter[str] = Counter()
        self.aborts: Counter[tuple[str, int]] = Counter()
        self.fair: dict[str, float] = {}

    def ready(self) -> list[Job]:
        """In the order in which they are claimed."""
        return sorted((job for job in self.jobs.values() if job.place == "ready"), key=lambda job: job.order)

    def waiting(self) -> Counter[str]:
        """What waits, by class: jobs, and the ms that they are predicted to run."""
        sums: Counter[str] = Counter()
        for job in self.jobs.values():
            if job.status == "queued":
                sums[f"queued:{job.service_class}"] += 1
                sums[f"queued_ms:{job.service_class}"] += job.cost_ms
        return sums

    def in_place(self, place: str) -> set[str]:
        return {job.job_id for job in self.jobs.values() if job.place == place}

    def start(self, tenant: str, now: float, charge: float | None) -> float:
        """Start-time fair queueing: `charge` is the cost over the tenant's weight, None for one that is not charged."""
        if charge is None:
            return now
        start = max(now, self.fair.get(tenant, 0.0))
        self.fair[tenant] = math.ceil(start + charge)
        return start

    def add(self, job: Job) -> int:
        """Returns how many ready jobs are claimed before it."""
        ahead = sum(other.order < job.order for other in self.ready())
        self.jobs[job.job_id] = job
        self.stats[f"enqueued:{job.service_class}"] += 1
        return ahead

    def end_delays(self) -> int:
        due = [job for job in self.jobs.values() if job.place == "delayed" and job.due]
        for job in due:
            job.place, job.due = "ready", False
        return len(due)

    def take(self, job: Job, token: int) -> None:
        assert token > job.token
        job.place, job.status, job.token = "leased", "running", token
        job.attempts += 1
        job.seq = 0
        job.lease_over = False
        self.stats[f"claimed:{job.service_class}"] += 1
        self.stats[f"claimed_ms:{job.service_class}"] += job.cost_ms

    def end(self, job: Job, status: str, data: bytes | None = None) -> None:
        assert job.pending, "a job ends once"
        if job.status == "running" and status != "succeeded":
            self.aborts[job.job_id, job.token] += 1
        job.place, job.status, job.data = "", status, data
        self.stats[f"{status}:{job.service_class}"] += 1

    def bury(self, job: Job, error: bytes) -> None:
        self.end(job, "failed", error)
        job.dead = True
        self.stats[f"dead:{job.service_class}"] += 1

    def requeue(self, job: Job, *, delayed: bool) -> None:
        """The score stays (invariant 8)."""
        self.stats[f"returned_ms:{job.service_class}"] += job.cost_ms
        job.status, job.place, job.due = "queued", "delayed" if delayed else "ready", False

    def append(self, job: Job, seq: int, data: bytes) -> None:
        job.seq = seq
        job.chunks.append((job.token, seq, data))

    def release(self, job: Job, reason: str, *, delayed: bool, error: bytes) -> int:
        job.returns += 1
        job.errors += reason == "error"
        if job.begun:
            self.end(job, "failed", error)
            return 2
        if job.errors > MAX_ERRORS:
            self.bury(job, error)
            return 2
        self.stats[f"retried:{reason}"] += 1
        self.requeue(job, delayed=delayed)
        return 1

    def reap(self, error: bytes) -> list[int]:
        """Deadlines first: a job that is too late is not tried again."""
        late = [job for job in self.jobs.values() if job.pending and job.overdue]
        for job in late:
            self.end(job, "expired")
        lost = [job for job in self.jobs.values() if job.place == "leased" and job.lease_over]
        for job in lost:
            self.die(job, error)
        return [len(lost), self.end_delays(), len(late)]

    def die(self, job: Job, error: bytes) -> None:
        job.deaths += 1
        self.stats["deaths"] += 1
        if job.begun:
            self.end(job, "failed", error)
        elif job.deaths > MAX_DEATHS:
            self.bury(job, error)
        else:
            self.requeue(job, delayed=False)
