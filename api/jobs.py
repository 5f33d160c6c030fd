"""Durable jobs: from a `/v1/jobs` body to a submission, and the record that pollers see.

A job of P2 or P3 is held back until a Celery task feeds it into the queue; if that message is lost, the queue lets the
job in by itself after `HOLD_S`.
"""

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.types import Receive

from api import admission, body, documents, idempotency, metering
from api.describe import describe, start_s
from api.errors import ApiError, invalid
from api.rendering import Headers
from api.routing import Request
from api.services import Services
from api.sse import attended
from api.submit import (
    OWN_FIELDS,
    Asked,
    Wishes,
    choose,
    class_of,
    divert,
    elsewhere,
    fresh_id,
    parse_class,
    parse_deadline,
    parse_priority,
    parse_tier,
    plain_submission,
)
from broker import request_checks
from broker.callbacks import check_url
from broker.ends import Who, noted
from broker.errors import QueueFull, RedisAway, UnknownJob
from broker.job import Accepted, JobView, ServiceClass, Status, Submission
from broker.policy import DAY_S
from broker.stream import Mailbox

FEED_TASK = "headway.feed"
HOLD_S = 60.0
DEFAULT_CLASS = ServiceClass.P2
JOB_FIELDS = frozenset({*OWN_FIELDS, "class", "deadline_s", "callback_url", "metadata"})
NOT_DEADLINES = ("deadline", "deadline_ms", "deadline_at", "timeout", "timeout_s", "ttl")
# OpenAI's limits on metadata
MAX_PAIRS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512


@dataclass(frozen=True, slots=True)
class JobAsked:
    """A job request that is right in itself."""

    asked: Asked
    metadata: dict[str, str]
    callback_url: str = ""


async def understand(services: Services, raw: bytes, *, wishes: Wishes) -> JobAsked:
    """Raises ApiError, UnknownPool."""
    document = body.parse(raw)
    _check_names(document)
    model = request_checks.model_name(document)
    endpoint = _endpoint(document)
    request_checks.check(document, endpoint)
    callback_url = document.get("callback_url")
    if callback_url is not None:
        check_url(callback_url, private=services.settings.callbacks_to_private)
    service_class = _class(document, wishes)
    engine_document = {name: value for name, value in document.items() if name not in JOB_FIELDS}
    deadline_s = document.get("deadline_s")
    if deadline_s is not None:
        deadline_s = parse_deadline(deadline_s, param="deadline_s")
    choice = await choose(
        services, model, request=Request(endpoint, engine_document, wishes.tenant.name, service_class)
    )
    asked = Asked(
        endpoint=endpoint,
        model=model,
        pool=choice.placed.pool if choice else await services.fleet.resolve(model),
        service_class=service_class,
        priority=parse_priority(document.get("priority")),
        deadline_s=deadline_s or wishes.deadline_s or DAY_S,
        stream=_streams(document, endpoint=endpoint),
        document=engine_document,
        body=orjson.dumps(engine_document),
        tenant=wishes.tenant,
        choice=choice,
        trace=wishes.trace,
    )
    asked = await divert(services, asked, wishes=wishes)
    return JobAsked(asked, _metadata(document.get("metadata")), callback_url or "")


def _check_names(document: dict[str, Any]) -> None:
    """A deadline that is misspelled must not be a job without one."""
    for name in NOT_DEADLINES:
        if document.get(name) is not None:
            message = f"{name} is no field of a job; use deadline_s, in seconds from now"
            raise invalid(message, param=name, code="unknown_parameter")


def _endpoint(document: dict[str, Any]) -> str:
    given = [
        endpoint for endpoint, subject in request_checks.SUBJECTS.items() if document.get(subject) is not None
    ]
    if len(given) == 1:
        return given[0]
    names = ", ".join(request_checks.SUBJECTS.values())
    if given:
        raise invalid(f"only one of {names} can be given", param=request_checks.SUBJECTS[given[1]])
    raise invalid(f"one of {names} is required", param="messages", code="missing_required_parameter")


def _class(document: dict[str, Any], wishes: Wishes) -> ServiceClass:
    """The body's `class` first, then the header, then `service_tier`, then the tenant's default."""
    tier = parse_tier(document.get("service_tier"))
    if document.get("class") is not None:
        return parse_class(document["class"], param="class")
    if wishes.service_class is not None:
        return wishes.service_class
    return class_of(tier, wishes.tenant, otherwise=DEFAULT_CLASS)


def _streams(document: dict[str, Any], *, endpoint: str) -> bool:
    """Whether tokens can be watched as they come; the result is whole either way. Only `false` turns it off."""
    if endpoint == request_checks.EMBEDDINGS:
        return False
    return document.get("stream") is not False


def _metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_PAIRS:
        raise invalid(f"metadata must be an object of at most {MAX_PAIRS} strings", param="metadata")
    for key, text in value.items():
        if not isinstance(text, str) or len(key) > MAX_KEY_CHARS or len(text) > MAX_VALUE_CHARS:
            raise invalid(
                f"metadata: keys of at most {MAX_KEY_CHARS} characters, strings of at most {MAX_VALUE_CHARS}",
                param="metadata",
            )
    return value


async def submit(
    services: Services, job_asked: JobAsked, *, key: str = "", told: Headers | None = None
) -> dict[str, Any]:
    """Queues the job; its document. Under an idempotency key that was used before: the job that there is.

    `told`: what is to be said about limits is added to it. Raises QueueFull, RedisAway; ApiError if the key was used for another request.
    """
    asked = job_asked.asked
    if not key:
        return await _queue(services, job_asked, job_id=fresh_id(services, asked), told=told, keyed=False)
    claimed = await idempotency.claim(
        services,
        asked,
        key=key,
        metadata=job_asked.metadata
        | ({"\0callback_url": job_asked.callback_url} if job_asked.callback_url else {}),
        retain_s=services.settings.result_ttl_s,
    )
    if claimed.first:
        return await _queue(services, job_asked, job_id=claimed.job_id, told=told)
    try:
        return await describe(services, await services.producer.get(claimed.job_id))
    except UnknownJob:  # whoever used the key first did not get to queue it
        document = await _queue(services, job_asked, job_id=claimed.job_id, told=told)
        await idempotency.prolong(services, claimed)
        return document


async def _queue(
    services: Services, job_asked: JobAsked, *, job_id: str, told: Headers | None, keyed: bool = True
) -> dict[str, Any]:
    """`keyed`: somebody may ask for it again."""
    asked = job_asked.asked
    job = metering.noted(submission(services, job_asked, job_id=job_id), asked.tenant)
    meter = await admission.metered(services, job, tenant=asked.tenant)
    if meter and told is not None:
        told += meter.headers
    try:
        job, accepted = await _enqueue(services, job_asked, job=job, keyed=keyed)
    except (ApiError, QueueFull):
        if meter:
            services.spawn(meter.settle())
        raise
    if not accepted.created:
        return await describe(services, await services.producer.get(job.job_id))
    if job.hold_s:
        services.celery_send(FEED_TASK, job.job_id)
    predicted_s = await start_s(services, job.pool, ahead=accepted.ahead)
    return _accepted_document(job, accepted, start_s=predicted_s) | {
        "model": asked.model,
        "metadata": job_asked.metadata,
    }


async def _enqueue(
    services: Services, job_asked: JobAsked, *, job: Submission, keyed: bool
) -> tuple[Submission, Accepted]:
    """The job as it was queued: in any shard of its pool that has room. A key stands for one id."""
    while True:
        try:
            return job, await admission.enqueue(services, job, durable=True)
        except admission.ShardFull:
            if keyed:
                raise
            other = elsewhere(services, job_asked.asked, job_id=job.job_id)
            job = metering.noted(submission(services, job_asked, job_id=other), job_asked.asked.tenant)
        except RedisAway:
            if not keyed:  # it may be queued, and nobody can ask for it again: it must not run for nobody
                services.abandon(job.job_id)
            raise


def submission(services: Services, job_asked: JobAsked, *, job_id: str) -> Submission:
    asked = job_asked.asked
    kept: dict[str, Any] = {"metadata": job_asked.metadata} if job_asked.metadata else {}
    if asked.model != asked.pool:
        kept["model"] = asked.model
    if job_asked.callback_url:
        kept["callback"] = {"url": job_asked.callback_url, "id": job_id}
    job = replace(
        plain_submission(services, asked, job_id=job_id),
        retain_s=services.settings.result_ttl_s,
        hold_s=HOLD_S if asked.service_class >= ServiceClass.P2 else 0.0,
        listed=True,
        metadata=orjson.dumps(kept) if kept else b"",
    )
    return noted(job, Who.CALLBACK) if job_asked.callback_url else job


def _accepted_document(job: Submission, accepted: Accepted, *, start_s: float | None) -> dict[str, Any]:
    """What is known without asking Redis again."""
    return {
        "id": job.job_id,
        "object": "job",
        "status": accepted.status,
        "class": job.service_class.name,
        "pool": job.pool,
        "endpoint": job.endpoint,
        "position": accepted.position,
        "predicted": documents.predicted(job.forecast, start_s),
        **documents.marks(job.route),
    }


async def wait_for_end(services: Services, job_id: str, *, wait_s: float, receive: Receive) -> JobView:
    """The job once it has ended, or as it is after `wait_s`. Raises UnknownJob, ClientGone."""
    job = await services.producer.get(job_id)
    if wait_s <= 0 or job.status.terminal:
        return job
    async with services.hub.watch(job_id) as box:
        with attended(receive, box):
            await _until_ended(services, box, wait_s=wait_s)
    return await services.producer.get(job_id)


async def _until_ended(services: Services, box: Mailbox, *, wait_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while not await _told_end(services, box):
                pass


async def _told_end(services: Services, box: Mailbox) -> bool:
    """Whether the next message is the job's end, or there may have been one that was missed."""
    message = await box.get()
    if message is not None and message.status is not Status.ESCALATED:
        return message.kind == "done"
    job = await services.producer.get(box.job_id, with_result=False)
    if job.job_id != box.job_id:  # another job has taken its place: the end is that one's
        box.move_to(job.job_id, job.why)
        return False
    return job.status.terminal
