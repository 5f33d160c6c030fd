"""Lines of a slice on their way into one queue: they go in bulk, and wait here while the queue takes no more.

While one call is on its way the next group gathers. A line is refused by nobody: what does not fit is offered again.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from broker.errors import BrokerError, LimitReached, QueueFull
from broker.job import Accepted, Submission
from broker.producer import Producer

MOST = 1000  # lines a call
FULL_S = 0.5  # until a full queue is asked again


class Group:
    """`left_s`: what every line's deadline is when it is sent, so that they can go together."""

    def __init__(self, producer: Producer, left_s: Callable[[], float]) -> None:
        self._producer = producer
        self._left_s = left_s
        self._lines: dict[str, tuple[Submission, asyncio.Future[Accepted | None]]] = {}
        self._flying: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, job: Submission) -> Accepted | None:
        """Waits until the job is queued, or known; None if it was let go before. Raises RedisAway."""
        future: asyncio.Future[Accepted | None] = asyncio.get_running_loop().create_future()
        self._lines[job.job_id] = (job, future)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        try:
            return await future
        finally:
            self._lines.pop(job.job_id, None)

    def let_go(self) -> None:
        """Has the lines that wait here look at their batch again. One that is on its way will be told what it met."""
        for job_id, (_, future) in self._lines.items():
            if job_id not in self._flying and not future.done():
                future.set_result(None)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """If the task broke off, whoever waits for it has to know."""
        if self._task is task:
            self._task = None
        error = None if task.cancelled() else task.exception()
        for _, future in self._lines.values():
            if error is not None and not future.done():
                future.set_exception(error)

    async def _run(self) -> None:
        while jobs := [job for job, future in self._lines.values() if not future.done()][:MOST]:
            self._flying = frozenset(job.job_id for job in jobs)
            full = await self._send(jobs)
            self._flying = frozenset()
            if full:
                await asyncio.sleep(FULL_S * random.uniform(0.5, 1.5))
        self._task = None  # at once, so that the next line starts another

    async def _send(self, jobs: Sequence[Submission]) -> bool:
        """Whether the queue is full; then as many as it had room for have gone."""
        left_s = self._left_s()
        together = [replace(job, deadline_s=left_s) for job in jobs]
        try:
            self._tell(await self._producer.submit_bulk(together))
        except LimitReached as full:
            await self._send_some(fitting(together, full))
        except QueueFull:
            return True
        except BrokerError as error:
            for job in jobs:
                if job.job_id in self._lines and not (future := self._lines[job.job_id][1]).done():
                    future.set_exception(error)
        else:
            return False
        return any(job.job_id in self._lines and not self._lines[job.job_id][1].done() for job in jobs)

    async def _send_some(self, jobs: Sequence[Submission]) -> None:
        """Somebody else may have been faster: then they are offered again with the others."""
        try:
            self._tell(await self._producer.submit_bulk(jobs))
        except BrokerError:
            return

    def _tell(self, accepted: Sequence[Accepted]) -> None:
        for each in accepted:
            _, future = self._lines.get(each.job_id, (None, None))
            if future is not None and not future.done():
                future.set_result(each)


def fitting(jobs: Sequence[Submission], full: LimitReached) -> Sequence[Submission]:
    """The first of them, as many as there is room for."""
    room = full.most - full.waiting
    if full.unit == "jobs":
        return jobs[: max(0, int(room))]
    count = 0
    for job in jobs:
        room -= job.forecast.run_s
        if room < 0 and (count or full.waiting):
            break
        count += 1
    return jobs[:count]
