"""The queue's commands: each Lua file with the keys and arguments it takes, as plain calls.

A `Call` is built here without I/O and run by `connection.Pipe` (live), or by the replay with a virtual clock.
This is also the border where float seconds become integer milliseconds.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from broker.job import Submission
from broker.keys import PoolKeys

DAY_S = 86_400.0
Argument = str | bytes | int | float
PARTS = ("now", "tell", "settle", "requeue", "bury")


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua command with its included parts. `sha` is what EVALSHA wants."""

    name: str
    source: bytes
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One command ready to be sent. Scripts check everything before they write, so a call is atomic."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]

    def evalsha(self) -> tuple[Argument, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def eval(self) -> tuple[Argument, ...]:
        """The fallback when the server has forgotten the script (restart, SCRIPT FLUSH, failover)."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)


def lua(name: str) -> str:
    """The text of one file of `broker/lua/`."""
    return (resources.files("broker") / "lua" / f"{name}.lua").read_text()


@cache
def script(name: str) -> Script:
    """Loads a command and puts the parts that its INCLUDES line names before it, in the order of `PARTS`."""
    body = lua(name)
    match = re.search(r"^-- INCLUDES: (.+)$", body, re.MULTILINE)
    included = {part.strip() for part in match[1].split(",")} if match else set()
    source = "".join(lua(f"_{part}") for part in PARTS if part in included) + body
    data = source.encode()
    return Script(name, data, hashlib.sha1(data, usedforsecurity=False).hexdigest())


def ms(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Order:
    """How a class is ordered: score = fair start + `sjf_weight` x predicted seconds + priority x `priority_step_s`.

    `priority_step_s`: how much earlier a job would have to arrive to make up for one step of the request's `priority`.
    """

    sjf_weight: float = 1.0
    priority_step_s: float = 3600.0
    index_cap: int = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """When a job is given up. A worker's death and an engine's error are counted apart."""

    lease_s: float = 10.0
    max_errors: int = 3
    max_deaths: int = 3
    dead_keep_s: float = 7 * DAY_S


def enqueue(job: Submission, order: Order) -> Call:
    k = PoolKeys(job.pool)
    i = job.job_id
    forecast = job.forecast
    fields: list[Argument] = [
        "endpoint",
        job.endpoint,
        "stream",
        int(job.stream),
        "attached",
        int(job.attached),
    ]
    fields += ["tenant", job.tenant, "ptok", forecast.prompt_tokens, "otok", forecast.output_tokens]
    fields += ["retain", ms(job.retain_s)]
    if job.metadata:
        fields += ["meta", job.metadata]
    sets = (k.named(name) for name in ("delayed", "deadlines", "marker", "index"))
    keys = (k.job(i), k.payload(i), *k.all_ready, *sets, k.fair(job.tenant), k.named("stats"))
    args: list[Argument] = [i, int(job.service_class), ms(forecast.run_s), order.sjf_weight]
    args += [
        ms(job.priority * order.priority_step_s),
        job.weight,
        ms(job.deadline_s),
        ms(job.hold_s),
        job.body,
    ]
    args += [order.index_cap if job.listed else 0, job.reply_to, *fields]
    return Call(script("enqueue"), keys, tuple(args))


def claim(pool: str, worker_id: str, *, n: int, lease_s: float) -> Call:
    k = PoolKeys(pool)
    keys = (
        k.prefix,
        *k.all_ready,
        k.named("delayed"),
        k.named("leases"),
        k.named("marker"),
        k.named("stats"),
    )
    return Call(script("claim"), keys, (worker_id, n, ms(lease_s)))


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat carries. `held`: (job id, token) of every lease; `record`: JSON about the worker."""

    worker_id: str
    record: bytes
    held: tuple[tuple[str, int], ...]
    lease_s: float

    @property
    def record_ttl_s(self) -> float:
        return self.lease_s * 1.5


def renew(pool: str, beat: Beat) -> Call:
    k = PoolKeys(pool)
    keys = (k.prefix, k.named("leases"), k.named("workers"), k.worker(beat.worker_id))
    pairs = [item for job_id, token in beat.held for item in (job_id, token)]
    args = (beat.worker_id, ms(beat.lease_s), ms(beat.record_ttl_s), beat.record, *pairs)
    return Call(script("renew"), keys, args)


def append(job_id: str, token: int, *, seq: int, data: bytes, maxlen: int) -> Call:
    """`seq`: number of the last chunk in `data`, counted from 1 within the token."""
    k = PoolKeys(job_id.partition(".")[2])
    return Call(
        script("append"), (k.job(job_id), k.output(job_id), k.prefix), (job_id, token, seq, data, maxlen)
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ends: `data` is the engine's answer or an error document (JSON); tokens as the engine counted them."""

    succeeded: bool
    data: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


def finish(job_id: str, token: int, *, ending: Ending) -> Call:
    k = PoolKeys(job_id.partition(".")[2])
    status = "succeeded" if ending.succeeded else "failed"
    usage = (ending.prompt_tokens, ending.output_tokens, ending.cached_tokens)
    return Call(
        script("finish"),
        (k.prefix, k.job(job_id), k.named("stats")),
        (job_id, token, status, ending.data, *usage),
    )


@dataclass(frozen=True, slots=True)
class Return:
    """Why a lease is given back. `reason`: error (counted), busy or drain (not counted)."""

    reason: str
    delay_s: float = 0.0
    error: bytes = b""


def release(job_id: str, token: int, *, given: Return, limits: Limits) -> Call:
    k = PoolKeys(job_id.partition(".")[2])
    keys = (k.prefix, k.job(job_id), k.history(job_id), k.named("stats"))
    args = (
        job_id,
        token,
        given.reason,
        ms(given.delay_s),
        limits.max_errors,
        given.error,
        ms(limits.dead_keep_s),
    )
    return Call(script("release"), keys, args)


def cancel(job_id: str) -> Call:
    k = PoolKeys(job_id.partition(".")[2])
    return Call(script("cancel"), (k.prefix, k.job(job_id)), (job_id,))


def feed(job_id: str) -> Call:
    k = PoolKeys(job_id.partition(".")[2])
    return Call(script("feed"), (k.job(job_id), k.named("delayed"), k.prefix), (job_id,))


def redrive(dead_id: str, new_id: str, *, deadline_s: float) -> Call:
    k = PoolKeys(dead_id.partition(".")[2])
    jobs = (k.job(dead_id), k.payload(dead_id), k.named("dead"), k.job(new_id), k.payload(new_id))
    return Call(
        script("redrive"),
        (k.prefix, *jobs, k.named("deadlines"), k.named("stats"), k.named("index")),
        (dead_id, new_id, ms(deadline_s)),
    )


DEATH = b'{"message":"the worker died or lost its connection while it ran this job","type":"server_error",\
"code":"worker_died","param":null}'


def reap(pool: str, limits: Limits, *, every_s: float = 1.0, limit: int = 200) -> Call:
    k = PoolKeys(pool)
    names = ("leases", "delayed", "deadlines", "index", "dead", "workers", "stats", "reaped")
    args = (ms(every_s), limit, limits.max_deaths, ms(limits.dead_keep_s), ms(30 * DAY_S), DEATH)
    return Call(script("reap"), (k.prefix, *(k.named(n) for n in names)), args)
