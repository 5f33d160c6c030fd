"""The Celery application: tasks that plan, feed and put together batches, and let single held jobs in.

    python -m celery -A workers.batch.app worker --pool threads -n batch@%h --task-events \
        --without-gossip --without-mingle

Messages carry ids only. A task runs in one of the pool's threads and waits there for its coroutine, which runs in the
process's one event loop (`means.py`). SIGTERM hands slices back; kill -9 loses nothing: leases run out, and the sweeper
(`workers/chores`) sends the units again.
"""

import asyncio
import concurrent.futures
import logging
from typing import Any

from celery import Celery, Task
from celery.signals import setup_logging, task_revoked, worker_shutdown, worker_shutting_down
from kombu.exceptions import OperationalError

from broker import logs
from broker.batch_record import message_for
from broker.batch_scripts import FINALIZE, PLAN
from broker.celery_options import celery_options
from broker.config import load_config
from broker.settings import load_settings
from workers.batch.means import LoopThread, Means, let_in, open_means
from workers.batch.revoking import Revoking
from workers.batch.units import Progress, Units

log = logging.getLogger("headway.batch")
SPARE_THREADS = 4  # for short tasks, while all the slices that may run are running
PROGRESS_S = 2.0  # between what Flower is told of a running slice

settings = load_settings()
app = Celery("headway", set_as_current=False)
app.conf.update(
    celery_options(settings.celery_url),
    worker_concurrency=settings.celery_concurrency + SPARE_THREADS,
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_track_started=True,
    task_send_sent_event=True,
    worker_send_task_events=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,  # threads cannot be cancelled (celery#7185)
)


def send_message(batch_id: str, unit: str) -> None:
    """A message that is lost is made up for by the sweeper."""
    name, ids = message_for(batch_id, unit)
    try:
        app.send_task(name, args=ids, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("Celery did not take %s(%s): %s", name, ", ".join(ids), error)


async def _send(batch_id: str, unit: str) -> None:
    await asyncio.to_thread(send_message, batch_id, unit)


class Desk:
    """The loop of this process, and the units that are done in it."""

    def __init__(self) -> None:
        self.thread = LoopThread(lambda: open_means(settings, load_config(settings)))
        self._units: Units | None = None

    @property
    def handed_back(self) -> list[tuple[str, str]]:
        return self._units.handed_back if self._units is not None else []

    async def do(self, means: Means, progress: Progress, *, ids: tuple[str, str]) -> str:
        if self._units is None:
            self._units = Units(means, _send)
        return await self._units.do(*ids, progress=progress)


desk = Desk()
revoking = Revoking(desk.thread, _send)
revoking.install()
task_revoked.connect(revoking.told)


def run_unit(task: "Task[Any, Any]", batch_id: str, *, unit: str) -> str:
    """Waits for the unit's coroutine and reports its progress meanwhile."""
    progress, task_id = Progress(), task.request.id or ""
    revoking.running[task_id] = batch_id
    try:
        return _until_done(task, progress, ids=(batch_id, unit))
    finally:
        del revoking.running[task_id]


def _until_done(task: "Task[Any, Any]", progress: Progress, *, ids: tuple[str, str]) -> str:
    future = desk.thread.submit(lambda means: desk.do(means, progress, ids=ids))
    while True:
        concurrent.futures.wait([future], timeout=PROGRESS_S)
        if future.done():
            return future.result()
        if text := str(progress):
            task.send_event("task-progress", result=text)


@app.task(name="headway.plan", bind=True)
def plan(self: "Task[Any, Any]", batch_id: str) -> str:
    return run_unit(self, batch_id, unit=PLAN)


@app.task(name="headway.slice", bind=True)
def feed_slice(self: "Task[Any, Any]", batch_id: str, number: str | int) -> str:
    return run_unit(self, batch_id, unit=str(number))


@app.task(name="headway.finalize", bind=True)
def finalize(self: "Task[Any, Any]", batch_id: str) -> str:
    return run_unit(self, batch_id, unit=FINALIZE)


@app.task(name="headway.feed")
def feed(job_id: str) -> str:
    """A single P2 or P3 job: lets it out of its hold."""
    return "fed" if desk.thread.submit(lambda means: let_in(means, job_id)).result() else "was not held"


@setup_logging.connect
def _on_logging(**_: object) -> None:
    """In place of Celery's own."""
    logs.configure(settings, "celery")


@worker_shutting_down.connect
def _on_signal(**_: object) -> None:
    desk.thread.stop()


@worker_shutdown.connect
def _on_exit(**_: object) -> None:
    """No task runs and no message is taken any more."""
    for batch_id, unit in desk.handed_back:
        send_message(batch_id, unit)
