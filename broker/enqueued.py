"""What `lua/enqueue.lua` answers, in the queue's own words. Used by the producer."""

from collections.abc import Sequence
from typing import Any

from broker.errors import LimitReached, QueueFull, StartTooLate
from broker.job import Accepted, Ahead, Status, Submission

POOL_JOBS, CLASS_JOBS, CLASS_MS, AHEAD_MS = 1, 2, 3, 4  # which limit was met


def accepted(jobs: Sequence[Submission], answer: list[Any]) -> list[Accepted]:
    """Of the jobs of one call. Raises QueueFull."""
    if answer[0]:
        raise refusal(jobs[0], answer)
    _, ahead, run_ms, *statuses = answer
    where = Ahead(ahead, run_ms / 1000) if ahead >= 0 else None
    return [
        Accepted(job.job_id, True, Status.QUEUED, where)
        if status is None
        else Accepted(job.job_id, False, Status(status.decode()))
        for job, status in zip(jobs, statuses, strict=True)
    ]


def refusal(job: Submission, answer: list[Any]) -> QueueFull:
    limit, waiting, most = answer
    if limit == AHEAD_MS:
        return StartTooLate(waiting / 1000)
    whose = "" if limit == POOL_JOBS else job.service_class.name
    if limit == CLASS_MS:
        return LimitReached(job.queue, whose, unit="s", waiting=waiting / 1000, most=most / 1000)
    return LimitReached(job.queue, whose, unit="jobs", waiting=waiting, most=most)
