"""`/v1/jobs`: work that nobody keeps a connection open for. Submit, poll, list, cancel, re-drive; events: `watch.py`."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from api import body, documents, jobs, schema
from api.describe import describe
from api.errors import ApiError, invalid
from api.idempotency import key_of
from api.metrics.requests import note_place
from api.ownership import check_readable, known, own_job, readable, tenant_of
from api.rendering import Headers, Json
from api.services import Services, services_of
from api.submit import Wishes, parse_class
from broker import feedback, producer
from broker.errors import UnknownJob
from broker.job import JobView, Status

MAX_WAIT_S = 60.0
MOST_DEAD = 1000  # of a queue, that a listing looks at

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post("", status_code=202, openapi_extra=schema.JOB_BODY)
async def submit_job(request: Request) -> Json:
    """Queues a request for later; the class is P2 unless `class`, the header or `service_tier` says otherwise.

    With an `Idempotency-Key` header a repeat returns the job that there is.
    """
    services = services_of(request)
    wishes, key = Wishes.read(request.scope), key_of(request.scope["headers"])
    asked = await jobs.understand(services, await body.read(request.receive), wishes=wishes)
    note_place(request.scope, asked.asked.pool, service_class=asked.asked.service_class)
    told: Headers = []
    document = await jobs.submit(services, asked, key=key, told=told)
    headers = {"x-headway-job": document["id"]} | {name.decode(): value.decode() for name, value in told}
    return Json(document, status_code=202, headers=headers)


class Listed(BaseModel):
    """The query of a listing."""

    model_config = ConfigDict(extra="forbid")

    status: str | None = Field(default=None, description="some of the statuses, comma separated")
    service_class: str | None = Field(default=None, alias="class", description="P0, P1, P2 or P3")
    limit: int = Field(default=20, ge=1, le=100)
    after: str | None = Field(default=None, description="the id that the last page ended with")
    dead: bool = Field(default=False, description="dead letters, which can be re-driven")


@router.get("")
async def list_jobs(request: Request, listed: Annotated[Listed, Query()]) -> Json:
    """The tenant's jobs of all pools, newest first. With the admin scope, everybody's dead letters."""
    services, tenant = services_of(request), tenant_of(request.scope)
    wanted = producer.Query(
        statuses=_statuses(listed.status),
        classes=frozenset({parse_class(listed.service_class, param="class")} if listed.service_class else ()),
        limit=listed.limit + 1,
        after=known(listed.after) if listed.after else "",
        tenant="" if listed.dead and tenant.access.admin else tenant.name,
    )
    load = _dead if listed.dead else _listed
    await services.fleet.pools()
    lists = await asyncio.gather(
        *(load(services, queue, wanted=wanted) for queue in services.fleet.seen_queues())
    )
    found = sorted((job for some in lists for job in some), key=_age, reverse=True)
    page = [documents.job_document(job) for job in found[: listed.limit]]
    return Json({"object": "list", "data": page, "has_more": len(found) > listed.limit})


async def _listed(services: Services, queue: str, *, wanted: producer.Query) -> list[JobView]:
    return await services.producer.list_jobs(queue, wanted)


async def _dead(services: Services, queue: str, *, wanted: producer.Query) -> list[JobView]:
    """Of the newest dead letters of the queue those that are wanted."""
    after = await services.producer.get(wanted.after, with_result=False) if wanted.after else None
    ids = await services.producer.dead(queue, limit=MOST_DEAD)
    seen = await asyncio.gather(*(services.producer.get(i) for i in ids), return_exceptions=True)
    found = (job for job in seen if isinstance(job, JobView) and producer.matches(job, wanted))
    older = (job for job in found if after is None or _age(job) < _age(after))
    page = sorted(older, key=_age, reverse=True)[: wanted.limit]
    return list(await asyncio.gather(*(services.producer.whole(job) for job in page)))


def _age(job: JobView) -> tuple[float, str]:
    return job.created, job.job_id


def _statuses(text: str | None) -> frozenset[Status]:
    """Comma separated. Raises ApiError."""
    named = {status.value: status for status in Status if status is not Status.ESCALATED}
    try:
        return frozenset(named[word.strip()] for word in text.split(",")) if text else frozenset()
    except KeyError:
        raise invalid(f"status must be some of {', '.join(named)}", param="status") from None


@router.get("/{job_id}")
async def get_job(
    request: Request, job_id: str, *, wait: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0
) -> Json:
    """The job. `wait`: seconds to hold the answer back for its end."""
    services = services_of(request)
    await check_readable(services, request.scope, job_id=job_id)
    job = await jobs.wait_for_end(services, known(job_id), wait_s=wait, receive=request.receive)
    return Json(await describe(services, readable(job, request.scope)))


@router.delete("/{job_id}")
async def cancel_job(request: Request, job_id: str) -> Json:
    """Cancels it unless it has ended; the job as it is then."""
    services = services_of(request)
    await own_job(services, request.scope, job_id=job_id)
    await services.producer.cancel(job_id)
    return Json(await describe(services, await services.producer.get(job_id)))


@router.post("/{job_id}/feedback", openapi_extra=schema.FEEDBACK_BODY)
async def rate_job(request: Request, job_id: str) -> Json:
    """Teaches routes when the small model will do. Once per job; only numbers are kept, no text."""
    services = services_of(request)
    document = body.parse(await body.read(request.receive))
    rating = document.get("rating")
    if rating not in ("good", "bad") or len(document) > 1:
        raise invalid('the body must be {"rating": "good"} or {"rating": "bad"}', param="rating")
    await own_job(services, request.scope, job_id=job_id)
    job = await services.producer.get(job_id, with_result=True)
    if not job.status.terminal:
        raise ApiError(409, f"{job_id} has not ended; it is {job.status}", code="job_not_ended")
    counted = await feedback.rate(services.pipe, job, good=rating == "good")
    return Json({"id": job_id, "object": "feedback", "rating": rating, "counted": counted})


@router.post("/{job_id}/redrive", status_code=202)
async def redrive_job(request: Request, job_id: str) -> Json:
    """Submits a dead letter's request again, as a new job, whose document is returned."""
    services = services_of(request)
    job = await own_job(services, request.scope, job_id=job_id)
    try:
        new_id = await services.producer.redrive(job_id)
    except UnknownJob:
        raise ApiError(
            409, f"{job_id} is no dead letter; it is {job.status}", code="not_a_dead_letter"
        ) from None
    document = await describe(services, await services.producer.get(new_id))
    return Json(document, status_code=202, headers={"x-headway-job": new_id})
