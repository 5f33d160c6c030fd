"""The queue's commands: each Lua file with the keys and arguments it takes, as plain calls.

This is also the border where float seconds become integer milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.job import ServiceClass, Status, Submission
from broker.keys import PoolKeys
from broker.policy import (
    ADMIT_ALL,
    AGING,
    BREAKER,
    DAY_S,
    Admission,
    Aging,
    Asking,
    Breaker,
    Limits,
    Order,
    Room,
)
from broker.script import Argument, Call, ms, percent, script


def enqueue(job: Submission, order: Order, *, admission: Admission = ADMIT_ALL) -> Call:
    return enqueue_many([job], order, admission=admission)


def alike(job: Submission) -> tuple[object, ...]:
    """What jobs must have in common to be enqueued by one script."""
    kind = (job.queue, job.service_class, job.endpoint, job.stream, job.attached, job.tenant, job.tenant_cap)
    when = (job.weight, job.priority, job.deadline_s, job.hold_s, job.retain_s)
    way = (job.heir, job.plan, job.route, job.base_token, job.notify, job.rescuable, job.resets, job.trace)
    return (*kind, *when, *way, job.reply_to, job.listed, job.metadata, job.origin)


def enqueue_many(jobs: Sequence[Submission], order: Order, *, admission: Admission = ADMIT_ALL) -> Call:
    """Jobs that are all `alike`; some hundreds at most, for others wait meanwhile (5 us each, measured)."""
    job, limits = jobs[0], admission.limits
    k, common = PoolKeys(job.queue), stored(job)
    c = int(job.service_class)
    args: list[Argument] = [c, order.sjf_weight, ms(job.priority * order.priority_step_s), job.weight]
    args += [ms(job.deadline_s), ms(job.hold_s), order.index_cap if job.listed else 0, job.reply_to]
    args += [-1 if most is None else most for most in (limits.jobs, limits.class_jobs[c])]
    args += [-1 if most_s is None else ms(most_s) for most_s in (limits.class_s[c], admission.most_ahead_s)]
    args += [percent(order.aging.share), int(admission.locate), len(common), *common]
    for each in jobs:
        need = each.forecast
        age_s = order.aging.first_s(each.service_class, deadline_s=each.deadline_s, run_s=need.run_s)
        args += (each.job_id, each.body, ms(need.run_s), ms(age_s))
        args += (need.prompt_tokens, need.output_tokens, need.kv_tokens, each.prefix, percent(need.tool_call))
    sets = (k.named(name) for name in ("delayed", "deadlines", "aging", "index"))
    keys = (k.prefix, k.ready(c), *sets, k.fair(job.tenant), k.named("stats"))
    return Call(script("enqueue"), keys, tuple(args))


def ahead(job_id: str, aging: Aging) -> Call:
    k = PoolKeys(job_id.partition(".")[2])
    return Call(script("ahead"), (k.prefix, k.job(job_id)), (job_id, percent(aging.share)))


def claim(queue: str, asking: Asking, *, room: Room, away: int = 0) -> Call:
    """`away`: 0 where the worker is at home, 1 if that is another shard (jobs are counted as `stolen_shard`), else 2."""
    k = PoolKeys(queue)
    keys = (k.prefix, *(k.named(name) for name in ("marker", "stats", "delayed")))
    bulk = room.slots if room.bulk_slots is None else room.bulk_slots
    free = [
        -1 if value is None else value
        for value in (room.kv_tokens, room.kv_total_tokens, room.prefill_tokens)
    ]
    passing = asking.passing
    args: tuple[Argument, ...] = (
        asking.worker_id,
        room.slots,
        ms(asking.lease_s),
        *ages(asking.aging),
        *free,
        bulk,
        passing.look,
    )
    args += (ms(passing.patience_s), passing.bypass_n, ms(passing.bypass_s), round(100 * asking.aging.share))
    mask = "".join(str(int(service_class in asking.classes)) for service_class in ServiceClass)
    mask += "r" if asking.rescues else ""
    args += (room.total_slots or room.slots, round(100 * asking.speed), mask, away)
    args += (-1 if room.prefill_total_tokens is None else room.prefill_total_tokens,)
    return Call(script("claim"), keys, args)


def urgent(queue: str, service_class: ServiceClass = ServiceClass.P0) -> Call:
    return Call(script("urgent"), (PoolKeys(queue).prefix,), (int(service_class),))


def ages(aging: Aging) -> tuple[int, int, int, int]:
    """Milliseconds at level 0, 1, 2, 3."""
    first, second, third, fourth = (ms(age_s) for age_s in aging.ages_s)
    return first, second, third, fourth


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat carries. `held`: (job id, token) of every lease; `record`: JSON about the worker; `wish`: what it
    knows that its operator wants of it (steering.py)."""

    worker_id: str
    record: bytes
    held: tuple[tuple[str, int], ...]
    lease_s: float
    wish: str = ""

    @property
    def record_ttl_s(self) -> float:
        return self.lease_s * 1.5


def renew(pool: str, beat: Beat) -> Call:
    k = PoolKeys(pool)
    keys = (k.prefix, k.named("leases"), k.named("workers"), k.worker(beat.worker_id))
    pairs = [item for job_id, token in beat.held for item in (job_id, token)]
    args = (beat.worker_id, ms(beat.lease_s), ms(beat.record_ttl_s), beat.record, beat.wish, *pairs)
    return Call(script("renew"), keys, args)


def steer(queue: str, worker_id: str, *, wish: str) -> Call:
    k = PoolKeys(queue)
    return Call(script("steer"), (k.worker(worker_id), k.control), (worker_id, wish))


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
    recounted: bool = False  # Headway's estimates, as the engine's counts could not be
    heir: str = ""  # the job that takes its place: it is escalated
    why: str = ""
    confidence: float | None = None

    @property
    def status(self) -> Status:
        if self.heir:
            return Status.ESCALATED
        return Status.SUCCEEDED if self.succeeded else Status.FAILED

    @property
    def told(self) -> bytes:
        """What waiters are told: the answer, the error, or where to go on and why."""
        return f"{self.heir} {self.why}".encode() if self.heir else self.data


def finish(job_id: str, token: int, *, ending: Ending) -> Call:
    return finish_many([(job_id, token, ending)])


def finish_many(ends: Sequence[tuple[str, int, Ending]], breaker: Breaker = BREAKER) -> Call:
    """Jobs of one pool, each with the token of its lease; some tens at most, for others wait meanwhile."""
    k = PoolKeys(ends[0][0].partition(".")[2])
    args: list[Argument] = [*rule(breaker)]
    for job_id, token, end in ends:
        args += (job_id, token, end.status, end.told)
        args += (end.prompt_tokens, end.output_tokens, end.cached_tokens, "1" if end.recounted else "")
        args.append("" if end.confidence is None else f"{end.confidence:.4f}")
    return Call(script("finish"), (k.prefix, k.named("stats")), tuple(args))


def rule(breaker: Breaker) -> tuple[int, ...]:
    """As `_breaker.lua` takes it."""
    windows = (ms(breaker.window_s), ms(breaker.open_s))
    return (percent(breaker.share) or int(breaker.share > 0), breaker.requests, *windows, breaker.probes)


@dataclass(frozen=True, slots=True)
class Return:
    """Why a lease is given back. `reason`: error (counted); busy, drain or preempt (not counted)."""

    reason: str
    delay_s: float = 0.0
    error: bytes = b""


def release(job_id: str, token: int, *, given: Return, limits: Limits) -> Call:
    k = PoolKeys(job_id.partition(".")[2])
    keys = (k.prefix, k.job(job_id), k.named("stats"))
    args: tuple[Argument, ...] = (
        job_id,
        token,
        given.reason,
        ms(given.delay_s),
        limits.max_errors,
        given.error,
        ms(limits.dead_keep_s),
        *rule(limits.breaker),
    )
    return Call(script("release"), keys, args)


def cancel(job_id: str, *, if_overdue: bool = False) -> Call:
    """`if_overdue`: it expires, if its deadline has passed."""
    k = PoolKeys(job_id.partition(".")[2])
    return Call(script("cancel"), (k.prefix, k.job(job_id)), (job_id, int(if_overdue)))


def feed(job_id: str) -> Call:
    k = PoolKeys(job_id.partition(".")[2])
    return Call(script("feed"), (k.job(job_id), k.named("delayed"), k.prefix), (job_id,))


def redrive(dead_id: str, new_id: str, *, deadline_s: float, aging: Aging = AGING) -> Call:
    k = PoolKeys(dead_id.partition(".")[2])
    jobs = (k.job(dead_id), k.payload(dead_id), k.named("dead"), k.job(new_id), k.payload(new_id))
    return Call(
        script("redrive"),
        (k.prefix, *jobs, k.named("deadlines"), k.named("stats"), k.named("index")),
        (dead_id, new_id, ms(deadline_s), *ages(aging)),
    )


DEATH = b'{"message":"the worker died or lost its connection while it ran this job","type":"server_error",\
"code":"worker_died","param":null}'


def reap(pool: str, limits: Limits, *, every_s: float = 1.0, limit: int = 200) -> Call:
    k = PoolKeys(pool)
    names = ("leases", "deadlines", "index", "dead", "workers", "stats", "reaped")
    args = (
        ms(every_s),
        limit,
        limits.max_deaths,
        ms(limits.dead_keep_s),
        ms(30 * DAY_S),
        DEATH,
        *ages(limits.aging),
        ms(limits.lease_s),
    )
    return Call(script("reap"), (k.prefix, *(k.named(n) for n in names)), args)


def stored(job: Submission) -> list[Argument]:
    """Name, value pairs that enqueue puts into the job's hash as they are. Zero is not stored: it is read as such."""
    fields: list[Argument] = ["endpoint", job.endpoint, "tenant", job.tenant, "retain", ms(job.retain_s)]
    optional: dict[str, Argument] = {
        "stream": int(job.stream),
        "attached": 2 if job.attached and job.resets else int(job.attached),
        "reply": job.reply_to,
        "meta": job.metadata,
        "cap": job.tenant_cap,
        "slots": job.choices if job.choices > 1 else 0,
        "heir": job.heir,
        "plan": job.plan,
        "route": job.route,
        "token": job.base_token,
        "notify": job.notify,
        "fall": int(job.rescuable),
        "trace": job.trace,
        "origin": job.origin,
    }
    return fields + [item for name, value in optional.items() if value for item in (name, value)]
