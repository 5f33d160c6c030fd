"""Ends of jobs that somebody beside their caller has to know of. The queue notes them (`lua/_settle.lua`), in the script that
ends the job, so that none is lost; whoever is responsible takes them from there, at least once.

Only jobs that were submitted with `notify` are noted: others cost nothing.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from broker.connection import Pipe
from broker.job import Submission
from broker.keys import PoolKeys

AT_ONCE = 200  # of a queue


class Who(StrEnum):
    """The letters with which a submission's `notify` begins."""

    LIMITS = "l"
    CALLBACK = "c"


def noted(job: Submission, who: Who) -> Submission:
    """Its end is noted, under the name that it has now: a successor (heirs.py, rescue.py) keeps that."""
    letters = job.notify.partition(":")[0]
    return replace(job, notify=f"{letters}{who}:{short_id(job.job_id)}")


def noted_as(notify: str) -> str:
    return notify.partition(":")[2]


def short_id(job_id: str) -> str:
    """Without the queue."""
    return job_id.partition(".")[0]


class Ends:
    """Of one kind. `pipe` is shared with whoever else lives in this process."""

    def __init__(self, pipe: Pipe, who: Who) -> None:
        self._pipe = pipe
        self._suffix = f"ended:{who}"

    async def look(self, queues: Iterable[str]) -> list[str]:
        """Ids of jobs that have ended, oldest first in each queue. They stay until they are dropped. Raises RedisAway."""
        asked = (self._pipe.command("ZRANGE", self._key(queue), 0, AT_ONCE - 1) for queue in queues)
        return [job_id.decode() for ids in await asyncio.gather(*asked) for job_id in ids]

    async def drop(self, job_ids: Sequence[str]) -> None:
        """What had to be done has been done. Raises RedisAway."""
        by_queue: dict[str, list[str]] = {}
        for job_id in job_ids:
            by_queue.setdefault(job_id.partition(".")[2], []).append(job_id)
        await asyncio.gather(
            *(self._pipe.command("ZREM", self._key(queue), *ids) for queue, ids in by_queue.items())
        )

    def _key(self, queue: str) -> str:
        return PoolKeys(queue).named(self._suffix)
