"""What the queue decides by: how a class is ordered, how waiting jobs rise, what a claim may pass over, when to give up.

Frozen values, handed down from the settings; the scripts get them as arguments with every call. docs/scheduling.md says
what they promise.
"""

from dataclasses import dataclass, field

from broker.job import ServiceClass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Aging:
    """`ages_s[level]`: how long a job waits at a level before it goes up one; 0 where it stays.

    `share`: the part of a level's claims that promoted jobs take at most while jobs of the level itself wait.
    """

    ages_s: tuple[float, float, float, float] = (0.0, 10.0, 600.0, 1800.0)
    share: float = 0.2

    def first_s(self, service_class: ServiceClass, *, deadline_s: float, run_s: float) -> float:
        """Until a new job's first promotion: earlier if its deadline leaves less time than it needs twice over."""
        age_s = self.ages_s[service_class]
        if not age_s:
            return 0.0
        slack_s = deadline_s - 2 * run_s
        return max(0.001, min(age_s, slack_s))


AGING = Aging()


@dataclass(frozen=True, slots=True)
class Order:
    """How a class is ordered: score = fair start + `sjf_weight` x predicted seconds + priority x `priority_step_s`.

    `priority_step_s`: how much earlier a job would have to arrive to make up for one step of the request's `priority`.
    """

    sjf_weight: float = 1.0
    priority_step_s: float = 3600.0
    index_cap: int = 10_000
    aging: Aging = AGING


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait in one queue; None: any number. Jobs of all classes; by class, jobs and predicted seconds."""

    jobs: int | None = None
    class_jobs: tuple[int | None, ...] = (None, None, None, None)
    class_s: tuple[float | None, ...] = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class Admission:
    """On what terms jobs are accepted. `most_ahead_s`: predicted seconds that may be claimed before; None: any.

    `locate`: say how much is ahead.
    """

    limits: QueueLimits = field(default_factory=QueueLimits)
    most_ahead_s: float | None = None
    locate: bool = True


ADMIT_ALL = Admission()


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a worker is given nothing more: more than `share` of at least `requests` failed in about `window_s`; `share` 0: never.

    It is open for `open_s`, each time twice as long, then gets one job at a time until `probes` of them have passed.
    """

    share: float = 0.1
    requests: int = 20
    window_s: float = 60.0
    open_s: float = 10.0
    probes: int = 5


BREAKER = Breaker()


@dataclass(frozen=True, slots=True)
class Limits:
    """When a job is given up. A worker's death and an engine's error are counted apart."""

    lease_s: float = 10.0
    max_errors: int = 3
    max_deaths: int = 3
    dead_keep_s: float = 7 * DAY_S
    aging: Aging = AGING
    breaker: Breaker = BREAKER


@dataclass(frozen=True, slots=True)
class Memory:
    """How much of finished jobs is kept of one pool (learning.py)."""

    outcomes: int = 10_000  # about 400 bytes each
    pasts: int = 5_000  # about 300 bytes each
    ttl_s: float = 30 * 86_400.0  # of both, if nothing is added


MEMORY = Memory()


@dataclass(frozen=True, slots=True)
class Passing:
    """What a claim may pass over. It looks at `look` jobs of a level beyond those that it wants.

    A job that does not fit is bypassed `bypass_n` times or for `bypass_s`; then room is held for it. A job whose prefix
    another live worker has is left to that one until it has waited `patience_s`.
    """

    look: int = 16
    bypass_n: int = 16
    bypass_s: float = 5.0
    patience_s: float = 0.1


PASSING = Passing()


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for jobs, and by which rules. `speed`: of the worker, 1.0 is usual; `classes`: those that it takes.

    `rescues`: it takes only jobs that may go to another pool, to bring them there.
    """

    worker_id: str
    lease_s: float = 10.0
    aging: Aging = AGING
    passing: Passing = PASSING
    speed: float = 1.0
    classes: frozenset[ServiceClass] = frozenset(ServiceClass)
    rescues: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """What a worker has free. `kv_tokens`, `prefill_tokens` None: not limited (unknown, or nothing runs).

    `bulk_slots`: how many of the `slots` P2 and P3 may take. `prefill_tokens`: of batch prompts; a longer prompt is taken if
    the engine reads none (all of `prefill_total_tokens` is free). `total_slots`: with those in use; None: none is.
    """

    slots: int
    bulk_slots: int | None = None
    kv_tokens: int | None = None
    kv_total_tokens: int | None = None
    prefill_tokens: int | None = None
    prefill_total_tokens: int | None = None
    total_slots: int | None = None
