"""The queue's vocabulary: classes, statuses, what is submitted, what a worker leases, what a reader gets back.

Plain data, no I/O. Times are float seconds; only `keys.py`, `scripts.py` and the Lua speak milliseconds.
"""

import itertools
import os
import re
import time
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from broker.errors import InvalidJob

POOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SHARD_MARK = "~"  # between a pool's name and the number of one of its queues; no pool has it in its name
JOB_ID = re.compile(r"job_[0-9a-z]{26}\.([A-Za-z0-9][A-Za-z0-9._-]{0,63}(?:~[1-9]?[0-9])?)")
MAX_PRIORITY = 1_000_000
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as it counts
PAIRS = [
    first + second for first in ALPHABET for second in ALPHABET
]  # two digits at a time: ids are made by the thousand


class ServiceClass(IntEnum):
    """P0 a person waits; P1 an agent or a short document; P2 batch; P3 background."""

    P0 = 0
    P1 = 1
    P2 = 2
    P3 = 3

    @classmethod
    def parse(cls, text: str) -> "ServiceClass":
        """Raises InvalidJob for anything but P0, P1, P2 or P3 (upper or lower case)."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            raise InvalidJob(f"class {text!r} does not exist; use P0, P1, P2 or P3", param="class") from None


class Status(StrEnum):
    """See docs/state_machine.md. A job reaches exactly one terminal status."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    ESCALATED = "escalated"  # of a first pass: another job has taken its place; no caller sees it (ADR 10)

    @property
    def terminal(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job is predicted to need. `run_s` is what the queue orders by."""

    prompt_tokens: int
    output_tokens: int
    run_s: float
    kv_tokens: int = 0  # what it may need of an engine's KV cache at most; 0: unknown
    tool_call: float = 0.0  # probability that the answer calls a tool


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as its producer hands it over. Immutable: a retry of `submit` with the same id changes nothing."""

    job_id: str
    service_class: ServiceClass
    endpoint: str
    body: bytes
    forecast: Forecast
    stream: bool = False
    attached: bool = False  # a connection waits for it; nobody will poll
    tenant: str = "default"
    weight: float = 0.0  # fair share; 0: the tenant is not charged
    tenant_cap: int = 0  # running jobs of the tenant at most; 0: no cap
    choices: int = 1  # answers that the engine works on at once, in a slot each
    prefix: str = ""  # hashes of the prompt's first blocks, shortest prefix first, joined by commas
    priority: int = 0  # lower first, inside the class
    deadline_s: float = 600.0
    reply_to: str = ""
    retain_s: float = 300.0
    hold_s: float = 0.0  # kept back until fed, or until this has passed
    listed: bool = False
    metadata: bytes = b""
    heir: str = ""  # id of the job that takes its place if it is escalated
    plan: str = ""  # when that is: heirs.Plan as text
    route: str = ""  # how its pool was chosen, for people
    base_token: int = 0  # its claims mint higher ones
    resets: bool = False  # if attached: it may begin anew after its first byte was seen
    rescuable: bool = False  # it may go to another pool if nobody serves this one (rescue.py)
    notify: str = ""  # who is told of its end: ends.noted
    trace: str = ""  # what it is part of: tracing.carried
    origin: str = ""  # of a successor: the id that the caller knows

    @property
    def pool(self) -> str:
        return pool_of(self.job_id)

    @property
    def queue(self) -> str:
        return queue_of(self.job_id)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is to be claimed before a job: so many jobs, and how long they are predicted to run."""

    jobs: int
    run_s: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """`created` is false if the id was known already; then nothing was changed but the reply address.

    `ahead` None: nobody asked, or the job was known.
    """

    job_id: str
    created: bool
    status: Status
    ahead: Ahead | None = None

    @property
    def position(self) -> int:
        return -1 if self.ahead is None else self.ahead.jobs


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one job until the lease expires. Every write carries `token`."""

    job_id: str
    token: int
    service_class: ServiceClass
    endpoint: str
    stream: bool
    attached: bool
    attempt: int
    run_s: float
    deadline: float  # Redis time, seconds since the epoch
    tenant: str
    body: bytes = field(repr=False)
    kv_tokens: int = 0
    preempts: int = 0
    heir: str = ""
    plan: str = ""
    prompt_tokens: int = 0
    choices: int = 1
    waited_s: float = 0.0  # from its acceptance to this claim
    trace: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """What a reader may know of a job. `result` and `error` are JSON documents. Times: seconds since the epoch."""

    job_id: str
    status: Status
    service_class: ServiceClass
    endpoint: str
    tenant: str
    forecast: Forecast
    attempts: int
    errors: int
    deaths: int
    worker: str
    created: float
    deadline: float
    claimed: float | None
    first_token: float | None
    finished: float | None
    usage: dict[str, int]
    metadata: bytes
    result: bytes | None = field(default=None, repr=False)
    error: bytes | None = field(default=None, repr=False)
    redriven_as: str | None = None
    recounted: bool = False  # `usage` is Headway's estimate: the engine's counts could not be
    claim: str = ""  # why the worker took it, as lua/_take.lua has it
    promoted: float | None = None  # when it last went up a level
    level: int | None = None  # that of another class, once it was promoted
    heir: str = ""
    route: str = ""
    confidence: float | None = None  # of a cascade's first pass
    why: str = ""  # it was escalated
    origin: str = ""  # as in Submission
    earlier: tuple["JobView", ...] = ()  # the passes that it has the place of, first one first

    @property
    def first(self) -> "JobView | None":
        """The first of the passes before it, whose id the caller knows."""
        return self.earlier[0] if self.earlier else None

    @property
    def passes(self) -> tuple["JobView", ...]:
        return (*self.earlier, self)

    @property
    def pool(self) -> str:
        return pool_of(self.job_id)

    @property
    def queue(self) -> str:
        return queue_of(self.job_id)


_ticks = itertools.count(int.from_bytes(os.urandom(3)))
_process = int.from_bytes(os.urandom(7))


def base32(number: int, length: int) -> str:
    """The lowest 5 x `length` bits of `number`, most significant digit first."""
    pairs = (length + 1) // 2
    return "".join([PAIRS[(number >> shift) & 1023] for shift in range(10 * (pairs - 1), -1, -10)])[-length:]


def new_job_id(queue: str) -> str:
    """48 bits of milliseconds, 26 of a counter, 56 of process entropy: sorts by time, FIFO inside a process.

    The clock only breaks ties between equal scores (design, invariant 5); it decides nothing. `queue`: of the pool, as
    `shards.Shards.pick` says.
    """
    number = (time.time_ns() // 1_000_000 << 82) | ((next(_ticks) & 0x3FFFFFF) << 56) | _process
    return f"job_{base32(number, 26)}.{queue}"


def heir_id(job_id: str, queue: str) -> str:
    """The job that takes another one's place, in another queue: the same digits, so that it is known from the start."""
    return f"{job_id.partition('.')[0]}.{queue}"


def derived_job_id(queue: str, *, seed: int) -> str:
    """A stable id for work that may be submitted again after a crash, such as a line of a batch.

    `seed`: 130 bits; equal seeds give equal ids.
    """
    return f"job_{base32(seed, 26)}.{queue}"


def queue_of(job_id: str) -> str:
    """The queue that holds the job's keys. Raises InvalidJob for anything that is not a job id."""
    match = JOB_ID.fullmatch(job_id)
    if match is None:
        raise InvalidJob(f"{job_id[:80]!r} is not a job id (job_<26 characters>.<pool>)", param="id")
    return match[1]


def pool_of(job_id: str) -> str:
    """The pool that the job was submitted to, whichever of its queues has it. Raises as `queue_of`."""
    return pool_of_queue(queue_of(job_id))


def pool_of_queue(queue: str) -> str:
    return queue.partition(SHARD_MARK)[0]
