"""Every key name in Redis, who owns it and how long it lives.

All keys of a pool share the hash tag `{pool}`, so that one script may touch them together on Redis Cluster. Keys of
single jobs are built from `prefix` by the scripts that learn ids only inside (claim, reap): ADR 0002.
"""

import hashlib
from dataclasses import dataclass, field

ROOT = "hw:"
# Kept for as long as the pool exists; everything else has a TTL or belongs to a job that has not ended yet.
PERMANENT_SUFFIXES = (
    "ready:0",
    "ready:1",
    "ready:2",
    "ready:3",
    "aged:0",
    "aged:1",
    "aged:2",
    "aging",
    "urgent",
    "running",
    "prefixes",
    "prefix_at",
    "delayed",
    "leases",
    "deadlines",
    "marker",
    "dead",
    "index",
    "workers",
    "stats",
)
PERMANENT_GLOBAL = ("hw:pools", "hw:batches", "hw:files")
FOREIGN = ("_kombu.", "unacked", "headway.", "rq:", "celery")


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """The keys of one pool. Suffixes: see the table in docs/architecture.md."""

    pool: str
    prefix: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{ROOT}{{{self.pool}}}:")

    def ready(self, service_class: int) -> str:
        return f"{self.prefix}ready:{service_class}"

    @property
    def all_ready(self) -> list[str]:
        return [self.ready(c) for c in range(4)]

    def named(self, suffix: str) -> str:
        return self.prefix + suffix

    def job(self, job_id: str) -> str:
        """HASH, small: what every script reads."""
        return f"{self.prefix}job:{job_id}"

    def payload(self, job_id: str) -> str:
        """STRING: the engine's request body. Apart, for a field over 64 bytes makes the hash 1.7 times larger."""
        return f"{self.prefix}in:{job_id}"

    def result(self, job_id: str) -> str:
        """STRING: the engine's answer, or the error document."""
        return f"{self.prefix}res:{job_id}"

    def output(self, job_id: str) -> str:
        """STREAM of chunks: the replay buffer. Also the name of the channel that watchers of the job listen to."""
        return f"{self.prefix}out:{job_id}"

    def history(self, job_id: str) -> str:
        """LIST of JSON: one entry per attempt that did not end well."""
        return f"{self.prefix}hist:{job_id}"

    def fair(self, tenant: str) -> str:
        """STRING: the tenant's virtual finish in ms; expires when that lies in the past."""
        return f"{self.prefix}fair:{tenant}"

    def worker(self, worker_id: str) -> str:
        """HASH with a TTL of three heartbeats."""
        return f"{self.prefix}worker:{worker_id}"

    def marker(self, worker_id: str) -> str:
        """ZSET: wakes this worker, which has the prefix of a waiting job. Ten seconds."""
        return f"{self.prefix}marker:{worker_id}"

    def reply(self, process: str) -> str:
        """Channel: the answers to what one process submitted. In the pool's slot, so that scripts may publish there."""
        return f"{self.prefix}reply:{process}"

    @property
    def control(self) -> str:
        """Channel: workers of the pool listen here for aborts."""
        return f"{self.prefix}control"


def idempotency_key(tenant: str, key: str) -> str:
    """STRING: what a caller's idempotency key stands for. A digest, for callers put anything into their keys."""
    digest = hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()
    return f"{ROOT}idem:{digest}"


def file_key(file_id: str) -> str:
    """STRING (JSON) about an uploaded or produced file; its bytes are elsewhere. Expires before them."""
    return f"{ROOT}file:{file_id}"


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The keys of one batch: few and small, as its lines stay in its file. All have a TTL from the start."""

    batch_id: str

    @property
    def batch(self) -> str:
        """HASH: what the API shows, and how far the batch is."""
        return f"{ROOT}batch:{{{self.batch_id}}}"

    @property
    def todo(self) -> str:
        """ZSET of the units that have been sent and not done, by the time (ms) at which to send them again."""
        return f"{self.batch}:todo"

    def unit(self, unit: str) -> str:
        """HASH: one piece of a batch's work (`plan`, a slice's number, or `finalize`) and its lease."""
        return f"{self.batch}:unit:{unit}"


def is_permanent(key: str) -> bool:
    """Whether a key may live without a TTL when no job is pending."""
    if key in PERMANENT_GLOBAL or key.startswith(FOREIGN):
        return True
    head, brace, suffix = key.partition("}:")
    return bool(brace) and head.startswith(ROOT + "{") and suffix in PERMANENT_SUFFIXES
