"""Tells of jobs that somebody will ask about (broker/notable.py): a follower of `sight.py`."""

import asyncio
import logging
import time

from broker import notable
from broker.connection import Pipe
from broker.errors import QueueFull, RedisAway
from broker.job import ServiceClass, queue_of
from broker.notable import Notable
from workers.sight import Seen

log = logging.getLogger("headway.notables")
TELL_S = 2.0
MOST_FAILED = 5  # told of at once: more of them say nothing new
WAITED_FOR = (ServiceClass.P0, ServiceClass.P1)


class Notables:
    """Of one worker. What cannot be told is dropped."""

    def __init__(self, pipe: Pipe, *, worker_id: str) -> None:
        self._pipe = pipe
        self._worker_id = worker_id
        self._slow: dict[str, list[Notable]] = {}
        self._failed: dict[str, list[Notable]] = {}

    def saw(self, seen: Seen, outcome: str) -> None:
        if outcome == "failed":
            failed = self._failed.setdefault(queue_of(seen.lease.job_id), [])
            failed[:] = [self._notable(seen, outcome), *failed][:MOST_FAILED]
        elif outcome == "succeeded" and seen.lease.service_class in WAITED_FOR:
            slow = self._slow.setdefault(queue_of(seen.lease.job_id), [])
            slow[:] = notable.slowest([*slow, self._notable(seen, outcome)], most=notable.SLOW_KEPT)

    def _notable(self, seen: Seen, outcome: str) -> Notable:
        lease, now = seen.lease, time.monotonic()
        first = now if seen.first is None else seen.first
        return Notable(
            job_id=lease.job_id,
            service_class=lease.service_class.name,
            worker=self._worker_id,
            outcome=outcome,
            wait_s=round(lease.waited_s, 3),
            first_s=round(seen.since_accepted_s(first), 3),
            total_s=round(seen.since_accepted_s(now), 3),
            ended=round(time.time(), 3),
        )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TELL_S)
            await self.flush()

    async def flush(self) -> None:
        """Everything that waits. Never raises."""
        slow, failed, self._slow, self._failed = self._slow, self._failed, {}, {}
        try:
            await asyncio.gather(
                *(notable.note_slow(self._pipe, jobs, queue=queue) for queue, jobs in slow.items()),
                *(notable.note_failed(self._pipe, jobs, queue=queue) for queue, jobs in failed.items()),
            )
        except (RedisAway, QueueFull) as error:
            log.debug("notable jobs were not told of: %s", error)
