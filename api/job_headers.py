"""What every answer says of its job, by headers."""

from collections.abc import Iterable

from api.errors import ApiError
from api.rendering import Headers
from broker.job import Submission
from broker.placement import degraded_from

JOB_HEADER = b"x-headway-job"


def job_headers(job: Submission) -> Headers:
    """What every answer to a queued request carries. Names and values are plain ASCII by construction."""
    return [
        (JOB_HEADER, job.job_id.encode()),
        (b"x-headway-pool", job.pool.encode()),
        (b"x-headway-class", job.service_class.name.encode()),
        (b"x-headway-predicted-ms", b"%d" % round(job.forecast.run_s * 1000)),
        *_route_headers(job.route),
    ]


def _route_headers(route: str) -> Headers:
    if not route:
        return []
    degraded = degraded_from(route)
    marked = [(b"x-headway-degraded", degraded.encode())] if degraded else []
    return [(b"x-headway-route", route.encode()), *marked]


def name_job(
    error: ApiError, job: Submission, *, more: Iterable[tuple[bytes, bytes]] = (), refused: bool = False
) -> ApiError:
    """Puts the job's headers on an error, so that a caller can ask what happened to it, and `more` of them.

    `refused`: it was not queued; where it would have gone is said, but no id that nobody could ask for.
    """
    own = [header for header in job_headers(job) if not (refused and header[0] == JOB_HEADER)]
    error.headers.update({name.decode(): value.decode() for name, value in (*own, *more)})
    return error
