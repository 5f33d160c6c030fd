"""Admission: from a request to a submission that may be queued. Checks, resolves the model, predicts, finds room.

Used by the OpenAI routes (a connection waits for the answer) and by `/v1/jobs` (somebody will poll).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from api import body
from api.errors import ApiError, invalid, no_worker
from api.rendering import Headers
from api.services import Services
from api.snapshots import Snapshot
from broker import request_checks
from broker.errors import InvalidJob, QueueFull
from broker.job import MAX_PRIORITY, ServiceClass, Submission, new_job_id
from predictor.prefix import prefix_chain

MAX_DEADLINE_S = 7 * 86_400.0
MAX_RETRY_AFTER_S = 300.0
ROOM_AFTER = 0.95  # a refused caller comes back when the queue is down to this share of its limit
ATTACHED_RETAIN_S = 60.0  # an answer that was delivered whole is kept for late lookers only
TIERS = {
    "priority": ServiceClass.P0,
    "default": ServiceClass.P0,
    "auto": ServiceClass.P0,
    "flex": ServiceClass.P2,
}
OWN_FIELDS = ("priority", "service_tier")  # Headway's, not the engine's


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller asks of the queue by header."""

    service_class: ServiceClass | None = None
    deadline_s: float | None = None

    @classmethod
    def read(cls, headers: Iterable[tuple[bytes, bytes]]) -> "Wishes":
        """Raises InvalidJob, ApiError."""
        service_class, deadline_s = None, None
        for name, value in headers:
            if not name.startswith(b"x-headway-"):
                continue
            text = value.decode("latin-1")
            if name == b"x-headway-class":
                service_class = parse_class(text, param="X-Headway-Class")
            elif name == b"x-headway-deadline":
                deadline_s = parse_deadline(text, param="X-Headway-Deadline")
        return cls(service_class, deadline_s)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is right in itself. `body` goes to the engine; `document` is the same, parsed."""

    endpoint: str
    model: str
    pool: str
    service_class: ServiceClass
    priority: int
    deadline_s: float
    stream: bool
    document: dict[str, Any]
    body: bytes


def parse_class(value: Any, *, param: str) -> ServiceClass:
    """Raises ApiError."""
    try:
        return ServiceClass.parse(value if isinstance(value, str) else repr(value))
    except InvalidJob as error:
        raise invalid(str(error), param=param) from None


def parse_deadline(value: Any, *, param: str) -> float:
    """Seconds, from a header's text or a body's number. Raises ApiError."""
    try:
        deadline_s = float(value) if type(value) in (str, int, float) else math.nan
    except (ValueError, OverflowError):
        deadline_s = math.nan
    if math.isnan(deadline_s):
        raise invalid(f"{param} must be a number of seconds", param=param, code="invalid_type") from None
    if not (math.isfinite(deadline_s) and 0 < deadline_s <= MAX_DEADLINE_S):
        raise invalid(f"{param} must be above 0 and at most {MAX_DEADLINE_S:.0f} seconds", param=param)
    return deadline_s


def parse_priority(value: Any) -> int:
    """Raises ApiError."""
    if value is None:
        return 0
    if type(value) is not int:
        raise request_checks.wrong("priority", value, wanted="an integer (lower first)")
    if abs(value) > MAX_PRIORITY:
        raise invalid(f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}", param="priority")
    return value


def parse_tier(value: Any) -> ServiceClass | None:
    """The class that OpenAI's `service_tier` stands for; None if it is absent. Raises ApiError."""
    if value is None:
        return None
    tier = TIERS.get(value) if isinstance(value, str) else None
    if tier is None:
        raise invalid(f"service_tier must be one of {', '.join(TIERS)}", param="service_tier")
    return tier


async def understand(services: Services, endpoint: str, *, raw: bytes, wishes: Wishes) -> Asked:
    """An OpenAI request. The body goes on as it came unless it carries fields of Headway. Raises ApiError, UnknownPool."""
    document = body.parse(raw)
    model = request_checks.model_name(document)
    request_checks.check(document, endpoint)
    priority, service_class = 0, wishes.service_class
    if "priority" in document or "service_tier" in document:
        priority = parse_priority(document.get("priority"))
        tier = parse_tier(document.get("service_tier"))
        service_class = tier if service_class is None else service_class
        document = {name: value for name, value in document.items() if name not in OWN_FIELDS}
        raw = orjson.dumps(document)
    return Asked(
        endpoint=endpoint,
        model=model,
        pool=await services.fleet.resolve(model),
        service_class=ServiceClass.P0 if service_class is None else service_class,
        priority=priority,
        deadline_s=wishes.deadline_s or services.settings.request_timeout_s,
        stream=document.get("stream") is True and endpoint != request_checks.EMBEDDINGS,
        document=document,
        body=raw,
    )


async def find_room(services: Services, pool: str, *, attached: bool) -> Snapshot:
    """Refuses what nobody would serve, or what the queue is too full for. Raises ApiError, QueueFull, RedisAway.

    Before a refusal it looks again: a worker may just have come, the queue may just have emptied.
    """
    room = await services.fleet.look(pool)
    most = services.settings.max_queued
    if room.queued >= most or (attached and not room.served):
        room = await services.fleet.look(pool, max_age_s=0.0)
    if attached and not room.served:
        raise no_worker(pool)
    if room.queued >= most:
        excess_s = room.wait_s(room.queued - round(ROOM_AFTER * most)) or room.view.mean_run_s or 1.0
        raise QueueFull(
            f"{room.queued} jobs wait in the pool {pool!r}, the most it takes",
            retry_after_s=min(MAX_RETRY_AFTER_S, excess_s),
        )
    room.submitted += 1
    return room


async def attached_job(services: Services, asked: Asked) -> Submission:
    """A submission that a connection waits for. Raises as `find_room`."""
    await find_room(services, asked.pool, attached=True)
    return attached_submission(services, asked, job_id=new_job_id(asked.pool))


def plain_submission(services: Services, asked: Asked, *, job_id: str) -> Submission:
    """What a job is whoever waits for it: the request and its forecast."""
    return Submission(
        job_id=job_id,
        service_class=asked.service_class,
        endpoint=asked.endpoint,
        body=asked.body,
        forecast=services.estimator.forecast(asked.pool, asked.document),
        prefix=prefix_chain(asked.document),
        stream=asked.stream,
        priority=asked.priority,
        deadline_s=asked.deadline_s,
    )


def attached_submission(services: Services, asked: Asked, *, job_id: str) -> Submission:
    """A connection of this process waits for the job."""
    retain_s = services.settings.replay_ttl_s
    return replace(
        plain_submission(services, asked, job_id=job_id),
        attached=True,
        reply_to=services.hub.address(job_id),
        retain_s=retain_s if asked.stream else min(retain_s, ATTACHED_RETAIN_S),
    )


def job_headers(job: Submission) -> Headers:
    """What every answer to a queued request carries. Names and values are plain ASCII by construction."""
    return [
        (b"x-headway-job", job.job_id.encode()),
        (b"x-headway-pool", job.pool.encode()),
        (b"x-headway-class", job.service_class.name.encode()),
        (b"x-headway-predicted-ms", b"%d" % round(job.forecast.run_s * 1000)),
    ]


def name_job(error: ApiError, job: Submission) -> ApiError:
    """Puts the job's headers on a refusal, so that a caller can ask what happened to it."""
    error.headers.update({name.decode(): value.decode() for name, value in job_headers(job)})
    return error
