"""Every key name in Redis, who owns it and how long it lives.

All keys of a queue share the hash tag `{queue}` (a pool's name, or a shard's: ADR 9), so that one script may touch them
together on Redis Cluster. Keys of single jobs are built from `prefix` by the scripts that learn ids only inside (claim, reap): ADR 0002.
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
    "spare",
    "stats",
    "ended:l",
    "ended:c",
    "totals",
)
POOLS = f"{ROOT}pools"  # SET of the names of all queues that are used
API_KEYS = f"{ROOT}keys"  # HASH: digest -> JSON about an API key; owner: the operator (`headway keys`)
API_KEYS_VERSION = f"{ROOT}keys:version"  # STRING: how often that has changed
CALLBACKS = f"{ROOT}callbacks"  # ZSET of callbacks that have not been taken, by when to try; three days after the last
CALLBACK_SECRETS = f"{ROOT}callbacks:secrets"  # HASH: tenant -> what its callbacks are signed with
ACCOUNTED = f"{ROOT}accounted"  # ZSET of the queues that have books, by the last day they were written
PERMANENT_GLOBAL = (
    POOLS,
    ACCOUNTED,
    "hw:batches",
    "hw:files",
    "hw:feedback",
    API_KEYS,
    API_KEYS_VERSION,
    CALLBACK_SECRETS,
)
FOREIGN = ("_kombu.", "unacked", "headway.", "rq:", "celery")


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """The keys of one queue: of a pool, or of one of its shards. Suffixes: see the table in docs/architecture.md."""

    queue: str
    prefix: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{ROOT}{{{self.queue}}}:")

    def ready(self, service_class: int) -> str:
        return f"{self.prefix}ready:{service_class}"

    @property
    def all_ready(self) -> list[str]:
        return [self.ready(c) for c in range(4)]

    @property
    def all_aged(self) -> list[str]:
        return [self.named(f"aged:{level}") for level in range(3)]

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

    def breaker(self, worker_id: str) -> str:
        """HASH with a TTL: the worker's breaker, once it has opened. Its counts are beside it, in a key for each sixth of the window."""
        return f"{self.prefix}brk:{worker_id}"

    def marker(self, worker_id: str) -> str:
        """ZSET: wakes this worker, which has the prefix of a waiting job. Ten seconds."""
        return f"{self.prefix}marker:{worker_id}"

    def minute(self, number: int) -> str:
        """HASH of sums (accounts.py), by minutes since the epoch. 65 minutes."""
        return f"{self.prefix}minute:{number}"

    def day(self, number: int) -> str:
        """HASH of sums (accounts.py), by days since the epoch, UTC. 400 days."""
        return f"{self.prefix}day:{number}"

    def slow(self, minute: int) -> str:
        """ZSET of the jobs that people waited for longest in a minute (notable.py), by ms. Eleven minutes."""
        return f"{self.prefix}slow:{minute}"

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


API_BOOKS = ".api"  # in place of a queue's name: what API processes count and tell of themselves; no pool is called so
FLOORS = f"{ROOT}floors"  # HASH "<route> <kind>": what feedback has taught; a month after the last lesson it expires
FEEDBACK = f"{ROOT}feedback"  # STREAM, capped: outcomes of routed jobs, without their text


def sticky_key(tenant: str, route: str, *, conversation: int) -> str:
    """STRING: the pool that a conversation is in. Expires some time after its last turn."""
    digest = hashlib.sha256(f"{tenant}\0{route}\0{conversation}".encode()).hexdigest()[:32]
    return f"{ROOT}sticky:{digest}"


def rated_key(job_id: str) -> str:
    """STRING: a job's feedback, which counts once."""
    return f"{ROOT}rated:{job_id.partition('.')[0]}"


def callback_key(delivery_id: str) -> str:
    """HASH: where, what, how often. Three days."""
    return f"{ROOT}callback:{delivery_id}"


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


@dataclass(frozen=True, slots=True)
class LimitKeys:
    """What a tenant and its keys have taken of their limits. All have a TTL."""

    tenant: str

    @property
    def prefix(self) -> str:
        return f"{ROOT}limit:{{{self.tenant}}}:"

    def window(self, scope: str) -> str:
        """HASH: requests and tokens of the last minute, by slot."""
        return f"{self.prefix}window:{scope}"

    def open(self, scope: str) -> str:
        """ZSET of the jobs that have not ended, by the end of their lease (ms)."""
        return f"{self.prefix}open:{scope}"

    def reservation(self, job: str) -> str:
        """STRING: when the job took how many tokens."""
        return f"{self.prefix}job:{job}"


def is_permanent(key: str) -> bool:
    """Whether a key may live without a TTL when no job is pending."""
    if key in PERMANENT_GLOBAL or key.startswith(FOREIGN):
        return True
    head, brace, suffix = key.partition("}:")
    return bool(brace) and head.startswith(ROOT + "{") and suffix in PERMANENT_SUFFIXES
