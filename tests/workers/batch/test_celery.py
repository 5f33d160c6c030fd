"""The real Celery worker, killed and restarted, with the real RQ program beside it."""

import asyncio
import base64
import contextlib
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from broker.batch_record import BatchSpec, BatchStatus, BatchView
from broker.job import Forecast, Lease, ServiceClass, Status, Submission, new_job_id
from broker.scripts import Ending
from broker.settings import Settings
from tests.conditions import wait_until
from tests.workers.batch.rig import (
    CONFIG,
    ENDPOINT,
    CeleryProcess,
    Engine,
    each_once,
    ended,
    environment,
    request_lines,
    upload,
)
from workers.batch.means import Means, open_means

Starter = Callable[[], CeleryProcess]


@pytest.fixture
async def means(settings: Settings) -> AsyncIterator[Means]:
    opened = await open_means(settings, CONFIG)
    yield opened
    await opened.hub.close()
    await opened.pipe.close()


@pytest.fixture
def start_celery(settings: Settings, tmp_path: Path) -> Iterator[Starter]:
    """Starts one, as often as it is called; all are gone after the test."""
    started: list[CeleryProcess] = []

    def start() -> CeleryProcess:
        started.append(CeleryProcess.start(settings, tmp_path / f"celery-{len(started)}.log"))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def chores(settings: Settings, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The RQ worker with its schedule."""
    with (tmp_path / "rq.log").open("wb") as log:
        argv = [sys.executable, "-m", "workers.chores.main"]
        process = subprocess.Popen(argv, env=environment(settings), stdout=log, stderr=log)
    yield process
    process.terminate()
    assert process.wait(timeout=10) == 0


class Events:
    """What a Flower would hear."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._pubsub.psubscribe("headway.celery:*celeryev*")
        self.seen: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        while (message := self._pubsub.get_message()) is not None:
            body = orjson.loads(base64.b64decode(orjson.loads(message["data"])["body"]))
            self.seen += body if isinstance(body, list) else [body]
        return self.seen

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.read() if event["type"] == kind]

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


@pytest.fixture
def events(redis_url: str) -> Iterator[Events]:
    heard = Events(redis_url)
    yield heard
    heard.close()


async def create(means: Means, count: int) -> BatchView:
    """A batch about which no message was sent."""
    return await means.batches.create(BatchSpec(await upload(means, request_lines(count)), ENDPOINT))


@contextlib.contextmanager
def celery_app(settings: Settings) -> Iterator[Any]:
    from celery import Celery

    from broker.celery_options import celery_options

    with Celery("test", set_as_current=False) as app:
        app.conf.update(celery_options(settings.celery_url))
        yield app


def send(settings: Settings, name: str, *ids: str, task_id: str | None = None) -> None:
    with celery_app(settings) as app:
        app.send_task(name, args=ids, task_id=task_id)


def revoke(settings: Settings, *task_ids: str) -> None:
    with celery_app(settings) as app:
        app.control.revoke(list(task_ids), terminate=True)


async def test_batches_and_single_jobs_go_through_celery(
    settings: Settings, means: Means, engine: Engine, start_celery: Starter, events: Events
) -> None:
    celery = await start_celery().ready()
    batch = await create(means, 45)
    for _ in range(3):
        send(settings, "headway.plan", batch.batch_id)
    outcome = await ended(means, batch.batch_id)
    assert each_once(outcome.answered, 45)
    assert set(engine.asked.values()) == {1}

    held = Submission(
        new_job_id("small"),
        ServiceClass.P2,
        ENDPOINT,
        b'{"messages":[{"content":"x"}]}',
        Forecast(1, 1, 0.1),
        hold_s=60,
    )
    await means.producer.submit(held)
    send(settings, "headway.feed", held.job_id)

    async def done() -> bool:
        return (await means.producer.get(held.job_id)).status.terminal

    await wait_until(done, what="the single job is let in and answered")

    def all_told() -> bool:
        return len(events.of("task-succeeded")) >= 9

    await wait_until(all_told, what="events of 3 plans, 5 slices, finalize and feed")
    results = [event["result"] for event in events.of("task-succeeded")]
    assert "'10/10 lines, 0 failed'" in results
    sent = {event["name"]: event["args"] for event in events.of("task-received")}
    assert sent["headway.feed"] == f"('{held.job_id}',)"
    await revoked_work_is_cancelled(settings, means, replace(held, job_id=new_job_id("small")))
    assert await celery.stop() == 0


async def revoked_work_is_cancelled(settings: Settings, means: Means, job: Submission) -> None:
    """As Flower does it: a job by its id, and a batch by a task of it that Celery has not begun."""
    batch = await create(means, 5)
    await means.producer.submit(job)
    revoke(settings, job.job_id, "a-plan")

    async def cancelled() -> bool:
        return (await means.producer.get(job.job_id)).status is Status.CANCELLED

    await wait_until(cancelled, what="the job is cancelled")
    send(settings, "headway.plan", batch.batch_id, task_id="a-plan")
    assert (await ended(means, batch.batch_id)).batch.status is BatchStatus.CANCELLED


async def test_kill_9_in_the_middle_of_a_slice_answers_every_line_once(
    means: Means, held_engine: Engine, start_celery: Starter, chores: "subprocess.Popen[bytes]"
) -> None:
    """No message is ever sent by hand: RQ's sweeper finds the batch, and again what the dead worker held."""
    reached, answers = asyncio.Event(), itertools.count()

    def some(lease: Lease) -> Ending:
        if next(answers) == 25:
            held_engine.hold.clear()
            reached.set()
        return Ending(True, b'{"n":1}')

    held_engine.answer, held_engine.slots = some, 1
    held_engine.hold.set()
    batch = await create(means, 60)
    await means.pipe.command("ZADD", f"hw:batch:{{{batch.batch_id}}}:todo", "XX", 1, "plan")
    celery = await start_celery().ready()
    await asyncio.wait_for(reached.wait(), 30)
    celery.kill()
    held_engine.slots = 64
    held_engine.hold.set()
    await start_celery().ready()
    outcome = await ended(means, batch.batch_id, timeout_s=40)
    assert each_once(outcome.answered, 60)
    assert set(held_engine.asked.values()) == {1}
    assert (outcome.batch.completed, outcome.batch.failed) == (60, 0)


async def test_sigterm_ends_the_worker_at_once_and_another_goes_on(
    settings: Settings, means: Means, held_engine: Engine, start_celery: Starter, events: Events
) -> None:
    celery = await start_celery().ready()
    batch = await create(means, 30)
    send(settings, "headway.plan", batch.batch_id)

    async def fed() -> bool:
        return bool(await means.pipe.command("ZCARD", "hw:{small}:ready:2"))

    await wait_until(fed, what="a slice runs")
    await wait_until(lambda: events.of("task-progress"), what="progress is shown")
    assert await celery.stop() == 0
    held_engine.hold.set()
    await start_celery().ready()
    assert each_once((await ended(means, batch.batch_id)).answered, 30)
    assert set(held_engine.asked.values()) == {1}
