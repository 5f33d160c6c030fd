"""What somebody revokes in Flower is cancelled: a job, or the batch that a plan, a slice or a finalize is of.

Celery's own revoke only drops messages: the sweeper would send the batch's unit again, and no engine would hear of a job.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from celery.worker.control import Panel
from celery.worker.state import revoked

from broker.batch_scripts import FINALIZE, PLAN
from broker.errors import BatchEnded, RedisAway, UnknownBatch, UnknownJob
from broker.job import JOB_ID
from workers.batch.means import LoopThread, Means

log = logging.getLogger("headway.batch")
ARGUMENT = re.compile(r"'([\w.~-]+)'")  # of a task, as Celery writes them
UNITS = {"headway.plan": PLAN, "headway.finalize": FINALIZE}  # a slice has its number as an argument
Send = Callable[[str, str], Awaitable[None]]


class Revoking:
    """`running`: the batch of each task that runs here, by the task's id."""

    def __init__(self, thread: LoopThread, send: Send) -> None:
        self.running: dict[str, str] = {}
        self._thread = thread
        self._send = send

    def install(self) -> None:
        """In place of Celery's control command of that name, which would besides want a result backend."""
        Panel.data["revoke"] = self.revoke

    def revoke(self, state: Any, task_id: str | list[str], **_: Any) -> dict[str, str]:  # noqa: ARG002 - Celery's
        """What runs is cancelled at once, what Celery has not begun when it would begin (`told`). Does not block."""
        ids = [task_id] if isinstance(task_id, str) else task_id
        for each in ids:
            if JOB_ID.fullmatch(each):
                self.cancel(each)
            else:
                revoked.add(each)
            if each in self.running:
                self.cancel(self.running[each])
        return {"ok": f"{', '.join(ids)}: revoked"}

    def told(self, request: Any, sender: Any, **_: Any) -> None:
        """Celery has dropped a task's message. The unit it was about is sent again: it ends the batch in order."""
        name, *more = ARGUMENT.findall(request.argsrepr or "") or [""]
        unit = UNITS.get(sender.name) or "".join(more)
        if name:
            self.cancel(name, dropped="" if JOB_ID.fullmatch(name) else unit)

    def cancel(self, name: str, *, dropped: str = "") -> None:
        """Also if several workers do it: all hear of what is revoked."""
        self._thread.submit(lambda means: self._cancel(means, name, dropped=dropped))

    async def _cancel(self, means: Means, name: str, *, dropped: str) -> None:
        try:
            await self._end(means, name)
        except (UnknownJob, UnknownBatch, BatchEnded, RedisAway) as error:
            log.info("what was revoked is not cancelled: %s", error)
        if dropped:
            await self._send(name, dropped)

    async def _end(self, means: Means, name: str) -> None:
        if JOB_ID.fullmatch(name):
            await means.producer.cancel(name)
            return
        for unit in await means.batches.cancel(name):
            await self._send(name, unit)
