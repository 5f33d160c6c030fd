"""How jobs and the fleet look from outside: plain JSON documents. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from api import errors
from broker.balance import Balance, judge, spread
from broker.config import EMBEDDED_MODEL, ModelConfig
from broker.fleet import PoolView, WorkerRecord
from broker.job import Forecast, JobView, ServiceClass, Status
from broker.placement import degraded_from

EMBEDDED_NOTE = f"embedded {EMBEDDED_MODEL} until you name a real engine in headway.yaml"
Document = dict[str, Any]


def parsed(raw: bytes | None) -> Any:
    """A stored JSON document; text as it is if it should not be JSON."""
    if not raw:
        return None
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode(errors="replace")


def between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 3)


def timings(job: JobView) -> Document:
    """Moments in seconds since the epoch (Redis' clock); durations in seconds, null until known."""
    return {
        "created_at": (job.first or job).created,
        "claimed_at": job.claimed,
        "first_token_at": job.first_token,
        "finished_at": job.finished,
        "queued_s": between(job.created, job.claimed or job.finished),
        "ttft_s": between((job.first or job).created, job.first_token),
        "run_s": between(job.claimed, job.finished),
        "total_s": between((job.first or job).created, job.finished),
    }


def predicted(need: Forecast, start_s: float | None) -> Document:
    """`start_s`: seconds from now until a worker takes it; null if nobody serves the pool, or it has started.

    `tool_call` is a probability, and not there where no tool can be called.
    """
    tool_call = round(need.tool_call, 2)
    return {
        "start_s": start_s,
        "run_s": round(need.run_s, 3),
        "output_tokens": need.output_tokens,
        **({"tool_call": tool_call} if tool_call else {}),
    }


def job_document(job: JobView, *, extra: Mapping[str, Any] | None = None) -> Document:
    """`extra` overrides or adds fields that the record alone does not hold (position, history)."""
    kept, first = parsed(job.metadata) or {}, job.first or job
    return {
        "id": first.job_id,
        "object": "job",
        "status": job.status,
        "class": job.service_class.name,
        "model": kept.get("model", job.pool),
        "pool": job.pool,
        "endpoint": job.endpoint,
        "created_at": first.created,
        "deadline_at": job.deadline,
        "position": None,
        "predicted": predicted(job.forecast, None),
        "metadata": kept.get("metadata", {}),
        "callback_url": kept.get("callback", {}).get("url"),
        "usage": usage(job),
        "worker": job.worker or None,
        "result": parsed(job.result),
        "error": error_document(job),
        "attempts": attempts(job),
        "timings": timings(job),
        "redriven_as": job.redriven_as,
        **routed(job),
        **(extra or {}),
    }


def attempts(job: JobView) -> Document:
    """Of all passes, where there were several."""
    return {
        "count": sum(each.attempts for each in job.passes),
        "errors": sum(each.errors for each in job.passes),
        "deaths": sum(each.deaths for each in job.passes),
    }


def usage(job: JobView) -> Document | None:
    """As the engines counted; all passes are charged."""
    passes = job.passes
    total = {name: sum(each.usage.get(name, 0) for each in passes) for each in passes for name in each.usage}
    return (total | ({"recounted": True} if any(each.recounted for each in passes) else {})) or None


def marks(route: str) -> Document:
    """How the pool was chosen, and the one that the job was meant for if it is in another."""
    degraded = degraded_from(route)
    return ({"route": route} if route else {}) | ({"degraded": degraded} if degraded else {})


def routed(job: JobView) -> Document:
    """How a route chose, and what was not good enough; nothing for a job of a pool that the caller named."""
    if not job.route:
        return {}
    confidence = (job.first or job).confidence
    return {
        **marks(job.route),
        "confidence": confidence,
        "escalations": [_escalation(each) for each in job.earlier],
    }


def _escalation(passed: JobView) -> Document:
    return {
        "pool": passed.pool,
        "reason": passed.why or None,
        "usage": passed.usage or None,
        "worker": passed.worker or None,
        "run_s": between(passed.claimed, passed.finished),
    }


def error_document(job: JobView) -> Any:
    """Why there is no result; null for a job that has one, or has not ended. In the caller's terms: of the first pass."""
    first = job.first or job
    match job.status:
        case Status.EXPIRED:
            return errors.deadline_passed(round(first.deadline - first.created, 3)).document()
        case Status.CANCELLED:
            return errors.cancelled(first.job_id).document()
        case Status.FAILED:
            return parsed(job.error)
        case _:
            return None


def by_class(counts: Sequence[int]) -> dict[str, int]:
    return {service_class.name: counts[service_class] for service_class in ServiceClass}


def worker_document(worker: WorkerRecord) -> Document:
    share = worker.busy_slots / worker.slots if worker.slots else 0.0
    return {
        "id": worker.worker_id,
        "state": worker.state,
        "breaker": worker.breaker,
        "engine": worker.engine,
        "model": worker.model,
        "embedded": worker.embedded,
        "slots": worker.slots,
        "busy_slots": worker.busy_slots,
        "busy_share": round(share, 4),
        "reserved_slots": worker.reserved_slots,
        "prefill_tokens": worker.prefill_tokens,
        "kv_used_share": worker.kv_used_share,
        "kv_total_tokens": worker.kv_total_tokens,
        "prefix_hit_share": _rounded(worker.prefix_hit_share),
        "predicted_s": worker.predicted_s,
        "jobs": {name: len(jobs) for name, jobs in worker.jobs.items()},
        "tpot_s": worker.tpot_s,
        "lately": worker.lately and asdict(worker.lately),
        "minute": worker.minute and asdict(worker.minute),
        "host": worker.host,
        "pid": worker.pid,
        "started_at": worker.started,
        "claimed": worker.claimed,
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def is_embedded(view: PoolView, model: ModelConfig | None) -> bool:
    """What the workers say; before any has come, what the configuration says."""
    if view.workers:
        return all(worker.embedded for worker in view.workers)
    return model is not None and model.embedded


def pool_document(view: PoolView, model: ModelConfig | None) -> Document:
    ready = view.ready_workers
    embedded = is_embedded(view, model)
    engines = sorted({worker.engine for worker in view.workers}) or ([model.engine] if model else [])
    return {
        "pool": view.pool,
        "engines": engines,
        "embedded": embedded,
        "note": EMBEDDED_NOTE if embedded else None,
        "waiting": by_class(view.waiting),
        "promoted": view.promoted,
        "delayed": view.delayed,
        "paused": view.paused,
        "draining": view.draining,
        "running": view.running,
        "shards": [asdict(shard) for shard in view.shards],
        "dead": view.dead,
        "slots": view.slots,
        "busy_slots": sum(worker.busy_slots for worker in ready),
        "mean_run_s": None if view.mean_run_s is None else round(view.mean_run_s, 3),
        "prefix_hit_share": _rounded(view.prefix_hit_share),
        "balance": balance(ready),
        "balance_detail": balance_document(judge(view)),
        "workers": [worker_document(worker) for worker in view.workers],
    }


def balance_document(found: Balance) -> Document:
    """The figures are over the last minute, the causes over the last ten seconds. `why`: one sentence or several; "" while it is even."""
    return {**asdict(found), "uneven": found.uneven, "why": found.why}


def fleet_balance(views: Sequence[PoolView]) -> float | None:
    """`balance` of all that are ready, each once however many pools it serves."""
    everyone = {worker.worker_id: worker for view in views for worker in view.ready_workers}
    return balance(list(everyone.values()))


def balance(workers: Sequence[WorkerRecord]) -> float | None:
    """Max over mean of the workers' busy shares: 1 is even; null while nobody is busy."""
    shares = [worker.busy_slots / worker.slots for worker in workers if worker.slots]
    found = spread(shares)
    return None if found is None else found.max_over_mean
