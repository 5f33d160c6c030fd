"""The queue's commands: each Lua file with the keys and arguments it takes, as plain calls.

This is also the border where float seconds become integer milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.job import ServiceClass, Submission
from broker.keys import PoolKeys
from broker.policy import AGING, DAY_S, Aging, Asking, Limits, Order, Room
from broker.script import Argument, Call, ms, script


def enqueue(job: Submission, order: Order) -> Call:
    k, i, forecast = PoolKeys(job.pool), job.job_id, job.forecast
    optional: dict[str, Argument] = {
        "cost": ms(forecast.run_s),
        "ptok": forecast.prompt_tokens,
        "otok": forecast.output_tokens,
        "need": forecast.kv_tokens,
        "pfx": job.prefix,
    }
    fields = stored(job) + [item for name, value in optional.items() if value for item in (name, value)]
    sets = (k.named(name) for name in ("delayed", "deadlines", "aging", "index"))
    keys = (k.job(i), k.payload(i), *k.all_ready, *sets, k.fair(job.tenant), k.named("stats"), k.prefix)
    age_s = order.aging.first_s(job.service_class, deadline_s=job.deadline_s, run_s=forecast.run_s)
    args: list[Argument] = [i, int(job.service_class), ms(forecast.run_s), order.sjf_weight]
    args += [
        ms(job.priority * order.priority_step_s),
        job.weight,
        ms(job.deadline_s),
        ms(job.hold_s),
        job.body,
    ]
    args += [order.index_cap if job.listed else 0, job.reply_to, ms(age_s), *fields]
    return Call(script("enqueue"), keys, tuple(args))


def claim(pool: str, asking: Asking, *, room: Room) -> Call:
    k = PoolKeys(pool)
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
    return Call(script("claim"), keys, args)


def urgent(pool: str, service_class: ServiceClass = ServiceClass.P0) -> Call:
    return Call(script("urgent"), (PoolKeys(pool).prefix,), (int(service_class),))


def ages(aging: Aging) -> tuple[int, int, int, int]:
    """Milliseconds at level 0, 1, 2, 3."""
    first, second, third, fourth = (ms(age_s) for age_s in aging.ages_s)
    return first, second, third, fourth


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
    return finish_many([(job_id, token, ending)])


def finish_many(ends: Sequence[tuple[str, int, Ending]]) -> Call:
    """Jobs of one pool, each with the token of its lease; some tens at most, for others wait meanwhile."""
    k = PoolKeys(ends[0][0].partition(".")[2])
    args: list[Argument] = []
    for job_id, token, end in ends:
        args += (job_id, token, "succeeded" if end.succeeded else "failed", end.data)
        args += (end.prompt_tokens, end.output_tokens, end.cached_tokens)
    return Call(script("finish"), (k.prefix, k.named("stats")), tuple(args))


@dataclass(frozen=True, slots=True)
class Return:
    """Why a lease is given back. `reason`: error (counted); busy, drain or preempt (not counted)."""

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
    )
    return Call(script("reap"), (k.prefix, *(k.named(n) for n in names)), args)


def stored(job: Submission) -> list[Argument]:
    """Name, value pairs that enqueue puts into the job's hash as they are. Zero is not stored: it is read as such."""
    fields: list[Argument] = ["endpoint", job.endpoint, "tenant", job.tenant, "retain", ms(job.retain_s)]
    optional: dict[str, Argument] = {
        "stream": int(job.stream),
        "attached": int(job.attached),
        "reply": job.reply_to,
        "meta": job.metadata,
        "cap": job.tenant_cap,
    }
    return fields + [item for name, value in optional.items() if value for item in (name, value)]
