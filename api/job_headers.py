"""What every answer says of its job, by headers."""

from collections.abc import Iterable, Sequence

from api.errors import ApiError
from api.rendering import Headers
from broker.job import Submission, pool_of
from broker.placement import degraded_from
from broker.rescue import POOL_OUT
from broker.stream import Mailbox

JOB_HEADER = b"x-headway-job"


def job_headers(job: Submission, box: Mailbox | None = None) -> Headers:
    """What every answer to a queued request carries. Names and values are plain ASCII by construction.

    `box`: in which it is read. The id is the first pass's, the pool the last one's.
    """
    return [
        (JOB_HEADER, job.job_id.encode()),
        (b"x-headway-pool", (pool_of(box.job_id) if box else job.pool).encode()),
        (b"x-headway-class", job.service_class.name.encode()),
        (b"x-headway-predicted-ms", b"%d" % round(job.forecast.run_s * 1000)),
        *([(b"x-headway-route", job.route.encode())] if job.route else []),
        *_handed_on(job, box.passed if box else ()),
    ]


def _handed_on(job: Submission, passed: Sequence[tuple[str, str]]) -> Headers:
    """The pool that it was meant for, if nobody served that; and why its first answer was not good enough."""
    left = next((pool_of(job_id) for job_id, why in passed if why == POOL_OUT), "")
    degraded = degraded_from(job.route) or left
    escalated = next((why for _, why in passed if why != POOL_OUT), "")
    return [
        *([(b"x-headway-degraded", degraded.encode())] if degraded else []),
        *([(b"x-headway-escalated", escalated.encode())] if escalated else []),
    ]


def name_job(
    error: ApiError, headers: Headers, *, more: Iterable[tuple[bytes, bytes]] = (), refused: bool = False
) -> ApiError:
    """Puts the job's `headers` on an error, so that a caller can ask what happened to it, and `more` of them.

    `refused`: it was not queued; where it would have gone is said, but no id that nobody could ask for.
    """
    own = [header for header in headers if not (refused and header[0] == JOB_HEADER)]
    error.headers.update({name.decode(): value.decode() for name, value in (*own, *more)})
    return error
