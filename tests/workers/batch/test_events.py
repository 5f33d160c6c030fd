"""What an engine worker tells Flower, read as Flower reads it."""

import base64
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import orjson
import pytest
import redis
from celery.events.state import State

from broker.job import Lease, ServiceClass, new_job_id
from broker.settings import Settings
from tests.conditions import wait_until_sync
from workers.batch.events import MAX_QUEUED, MOST_A_SECOND, CeleryEvents


def lease(service_class: ServiceClass = ServiceClass.P2, *, body: bytes = b'{"prompt":"secret"}') -> Lease:
    return Lease(
        job_id=new_job_id("small"),
        token=1,
        service_class=service_class,
        endpoint="/v1/completions",
        stream=False,
        attached=False,
        attempt=1,
        run_s=1.0,
        deadline=0.0,
        tenant="default",
        body=body,
    )


class Listener:
    """Celery's own picture of the cluster, fed from the wire."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._pubsub.psubscribe("headway.celery:*celeryev*")
        self.state: Any = State()
        self.raw = b""

    def tasks(self) -> dict[str, Any]:
        while (message := self._pubsub.get_message()) is not None:
            body = base64.b64decode(orjson.loads(message["data"])["body"])
            self.raw += body
            found = orjson.loads(body)
            for event in found if isinstance(found, list) else [found]:
                self.state.event({"local_received": time.time(), "clock": 0} | event)
        return dict(self.state.tasks)

    def states(self) -> dict[str, str]:
        return {uuid: task.state for uuid, task in self.tasks().items()}

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


@pytest.fixture
def listener(redis_url: str) -> Iterator[Listener]:
    with closing(Listener(redis_url)) as made:
        yield made


@pytest.fixture
def events(redis_url: str, listener: Listener) -> Iterator[CeleryEvents]:
    made = CeleryEvents(Settings(redis_url=redis_url), pool="small", worker_id="w1")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("succeeded", "SUCCESS"),
        ("failed", "FAILURE"),
        ("retry", "RETRY"),
        ("handed back", "RETRY"),
        ("lost", "REVOKED"),
    ],
)
def test_a_batch_job_is_a_task_with_the_end_it_had(
    events: CeleryEvents, listener: Listener, outcome: str, state: str
) -> None:
    job = lease()
    events.started(job)
    events.ended(job, outcome, run_s=0.5)
    wait_until_sync(lambda: listener.states().get(job.job_id) == state, what=state)
    task = listener.tasks()[job.job_id]
    assert task.name == "headway.job"
    assert task.args == f"('{job.job_id}',)"
    assert task.worker.hostname == "engine@small-w1"
    assert b"secret" not in listener.raw


def test_interactive_jobs_count_but_are_no_tasks(events: CeleryEvents, listener: Listener) -> None:
    interactive, batch = lease(ServiceClass.P0), lease(ServiceClass.P3)
    events.started(interactive)
    events.ended(interactive, "succeeded", run_s=0.5)
    events.started(batch)
    wait_until_sync(lambda: listener.states() == {batch.job_id: "STARTED"})
    events.close()
    node = listener.state.workers["engine@small-w1"]
    wait_until_sync(lambda: listener.tasks() and not node.alive, what="the node goes offline")
    assert (node.active, node.processed) == (1, 1)


def test_nothing_blocks_or_grows_while_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.batch.events.MOST_A_SECOND", MAX_QUEUED)
    events = CeleryEvents(Settings(celery_url="redis://127.0.0.1:1/0"), pool="small", worker_id="w1")
    for _ in range(MAX_QUEUED):
        events.started(lease())
    assert events.dropped == MAX_QUEUED
    events.close()


def test_a_flood_of_jobs_is_counted_whole_and_shown_in_part(events: CeleryEvents, listener: Listener) -> None:
    many = 10 * MOST_A_SECOND
    for job in [lease() for _ in range(many)]:
        events.started(job)
        events.ended(job, "succeeded", run_s=0.1)
    wait_until_sync(lambda: [*listener.states().values()].count("SUCCESS") >= MOST_A_SECOND)
    events.close()
    node = listener.state.workers["engine@small-w1"]
    wait_until_sync(lambda: listener.tasks() and not node.alive, what="the node goes offline")
    assert node.processed == many
    assert MOST_A_SECOND <= len(listener.tasks()) <= 3 * MOST_A_SECOND
    assert set(listener.states().values()) == {"SUCCESS"}
