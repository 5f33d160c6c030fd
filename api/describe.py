"""The full document of one job, as it is now: what Redis has to be asked for beside its record."""

import asyncio
from typing import Any

from api import documents, story
from api.services import Services
from broker.job import Ahead, JobView, Status
from broker.record import Attempt


async def describe(services: Services, job: JobView) -> dict[str, Any]:
    """The full document, with its place in the queue, its story, and its earlier attempts where there were some."""
    extra: dict[str, Any] = {}
    soon_s = None
    if job.status is Status.QUEUED:
        ahead = await services.producer.ahead(job.job_id)
        soon_s = await start_s(services, job.pool, ahead=ahead)
        extra["position"] = None if ahead is None else ahead.jobs
        extra["predicted"] = documents.predicted(job.forecast, soon_s)
    histories = await asyncio.gather(*(_history(services, each) for each in job.passes))
    if attempts := [story.attempt_document(attempt) for history in histories for attempt in history]:
        extra["attempts"] = documents.attempts(job) | {"history": attempts}
    extra["forecast"] = story.forecasts(job, start_s=soon_s)
    extra["story"] = story.story(job, histories)
    return documents.job_document(job, extra=extra)


async def _history(services: Services, job: JobView) -> list[Attempt]:
    """Asks Redis only where an attempt has not ended the job."""
    ended_it = not (job.errors or job.deaths or job.status is Status.QUEUED) and job.attempts <= 1
    return [] if ended_it or not job.attempts else await services.producer.history(job.job_id)


async def start_s(services: Services, pool: str, *, ahead: Ahead | None) -> float | None:
    """Seconds until a job is predicted to start that has so much before it. Raises RedisAway."""
    room = await services.fleet.look(pool)
    return room.start_s(ahead, queues=len(services.fleet.shards.queues(pool)))
