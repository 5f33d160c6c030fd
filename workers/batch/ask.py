"""Puts lines of a slice into the queue, no more than a window of them at a time, and waits for what becomes of them.

A line's job has an id that follows from the batch and the line. So a slice that is done again, after a crash or a
message delivered twice, meets its own jobs and their answers instead of asking anew.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, replace

from broker import request_checks
from broker.batch_record import BatchView, Mode
from broker.errors import BrokerError, QueueFull, RedisAway, UnknownJob
from broker.heirs import with_heir
from broker.job import Accepted, JobView, Status, Submission
from broker.stream import Mailbox
from predictor.prefix import prefix_chain
from workers.batch.group import Group
from workers.batch.lease import Keeper
from workers.batch.lines import Request
from workers.batch.means import Means
from workers.waiting import first_of

SWEEP_S = 20.0  # a line whose message was missed is looked at after this
RETAIN_S = 3600.0  # an answer waits for its slice, should that have to be done again
AWAY_S = 0.5


class HandedBack(BrokerError):
    """The worker stops; the slice is for another one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a line's job ended. `status` None: it was never queued. `data`: the answer or the error document."""

    status: Status | None
    data: bytes = b""


class Asker:
    """One slice's lines in the queue. `job_ids`: all that were asked for or found."""

    def __init__(self, means: Means, batch: BatchView, *, keeper: Keeper) -> None:
        self.job_ids: list[str] = []
        self._means = means
        self._batch = batch
        self._keeper = keeper
        self._window = asyncio.Semaphore(means.settings.batch_window)
        self._boxes: set[Mailbox] = set()
        self._groups: dict[str, Group] = {}
        self._tenant = means.config.tenant(batch.spec.tenant)
        self._shards = means.config.shards
        self._ends_at = asyncio.get_running_loop().time() + keeper.taken.left_s

    async def watch(self) -> None:
        """Has every waiting line look again whenever the batch or the worker is stopped. Runs beside the slice."""
        while not self._means.stopping.is_set():
            await first_of(self._keeper.changed, self._means.stopping)
            self._keeper.changed.clear()
            for group in self._groups.values():
                group.let_go()
            for box in self._boxes:
                box.lose()

    async def ask(self, job_id: str, request: Request) -> Answer:
        """Waits for the line's turn, then for its end. Raises HandedBack."""
        async with self._window:
            if self._keeper.mode is not Mode.FEED and self._keeper.taken.is_first:
                return Answer(None)
            self.job_ids.append(job_id)
            with self._means.hub.mailbox(job_id) as box:
                self._boxes.add(box)
                try:
                    return await self._until_ended(box, request)
                finally:
                    self._boxes.discard(box)

    async def _until_ended(self, box: Mailbox, request: Request) -> Answer:
        """Submitting again is how a line is looked at again: it says how the job is, and where to tell its end."""
        job, queued = self._submission(box.job_id, request), False
        while True:
            if self._means.stopping.is_set():
                raise HandedBack(
                    f"slice {self._keeper.taken.held.unit} of {self._batch.batch_id} is handed back"
                )
            try:
                if self._keeper.mode is not Mode.FEED:
                    return await self._withdraw(job.job_id)
                accepted = await self._submit(job, again=queued)
                if accepted is None:
                    continue
                queued = True
                if accepted.status.terminal and (ended := await self._ended(job.job_id, box)):
                    return ended
            except (RedisAway, QueueFull, UnknownJob):
                await asyncio.sleep(AWAY_S * random.uniform(0.5, 1.5))
                continue
            answer = await _hear(box)
            if answer is not None:
                return answer

    async def _submit(self, job: Submission, *, again: bool) -> Accepted | None:
        """The first time with others, however long the queue is full; later by itself. None: look at the batch first."""
        if again:
            return await self._means.producer.submit(replace(job, deadline_s=self._left_s()))
        if job.queue not in self._groups:
            self._groups[job.queue] = Group(self._means.producer, self._left_s)
        return await self._groups[job.queue].submit(job)

    def _left_s(self) -> float:
        return max(0.01, self._ends_at - asyncio.get_running_loop().time())

    def close(self) -> None:
        for group in self._groups.values():
            group.close()

    async def _withdraw(self, job_id: str) -> Answer:
        """Ends a job that nobody waits for any more, unless it has ended. Raises RedisAway."""
        try:
            await self._means.producer.cancel(job_id)
            return _answer(await self._means.producer.get(job_id))
        except UnknownJob:
            return Answer(None)

    async def _ended(self, job_id: str, box: Mailbox) -> Answer | None:
        """None where another job has its place and has not ended: `box` hears of that one from now on.

        Raises UnknownJob, RedisAway.
        """
        try:
            view = await self._means.producer.get(job_id)
        except UnknownJob:
            await self._means.producer.forget([job_id])  # what is left may lead to nothing: it is asked anew
            raise
        if view.job_id != box.job_id:
            self.job_ids.append(view.job_id)
            box.move_to(view.job_id, view.why)
        return _answer(view) if view.status.terminal else None

    def _submission(self, job_id: str, request: Request) -> Submission:
        spec, aim = self._batch.spec, request.aim
        job = Submission(
            job_id,
            spec.service_class,
            spec.endpoint,
            request.body,
            self._means.estimator.forecast(
                aim.pool, request.document, tenant=spec.tenant, features=aim.features
            ),
            prefix=prefix_chain(request.document, tenant=spec.tenant),
            tenant=spec.tenant,
            weight=self._tenant.weight,
            tenant_cap=self._tenant.max_running,
            choices=request_checks.choices(request.document),
            deadline_s=self._left_s(),
            reply_to=self._means.hub.address(job_id),
            retain_s=RETAIN_S,
            route=aim.route,
        )
        if not aim.heir:
            return job
        plan = replace(aim.plan, weight=job.weight)
        return with_heir(job, aim.heir, plan=plan, shards=self._shards)


def _answer(view: JobView) -> Answer:
    return Answer(view.status, view.result or view.error or b"")


async def _hear(box: Mailbox) -> Answer | None:
    """The job's end, or None when it is time to look."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SWEEP_S * random.uniform(0.8, 1.2)):
            return await _end_told(box)
    return None


async def _end_told(box: Mailbox) -> Answer | None:
    while (message := await box.get()) is not None:
        if message.status is Status.ESCALATED:
            return None  # another job has its place
        if message.kind == "done":
            return Answer(message.status, message.data)
    return None
