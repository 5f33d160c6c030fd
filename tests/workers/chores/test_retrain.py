"""The training chore, as RQ's own worker runs it, on outcomes in a real Redis."""

import asyncio
import threading
from pathlib import Path

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from broker import fleet, learning
from broker.connection import Pipe
from broker.settings import Settings
from predictor.model_store import ModelStore
from tests.predictor.tenants import outcomes
from workers.chores import cron, jobs
from workers.chores.main import SlowWorker, worker_of

HABITS = (30.0, 90.0, 250.0, 700.0)


@pytest.fixture
def settings(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    made = Settings(redis_url=redis_url, home=tmp_path, retrain_s=3600.0)
    monkeypatch.setattr(jobs, "_settings", lambda: made)
    return made


def serve(url: str, n: int, *, seed: int = 0) -> None:
    """So many finished jobs of one tenant."""

    async def report() -> None:
        pipe = Pipe(url)
        await fleet.announce_pool(pipe, "small")
        made = list(outcomes(n, habits=HABITS, seed=seed))
        for at in range(0, n, 200):
            await pipe.run(learning.report("small", made[at : at + 200]))
        await pipe.close()

    asyncio.run(report())


def work(url: str) -> int:
    """Queues the chore and has the slow chores' worker run it, in a thread as ever; its result."""
    with redis.Redis.from_url(url) as connection:
        queue = Queue(cron.SLOW_QUEUE, connection=connection, serializer=JSONSerializer)
        job = queue.enqueue(jobs.retrain, result_ttl=60, failure_ttl=60)
        worker = worker_of(SlowWorker, connection, queue=cron.SLOW_QUEUE)
        thread = threading.Thread(target=lambda: worker.work(burst=True, logging_level="WARNING"))
        thread.start()
        thread.join()
        job.refresh()  # type: ignore[no-untyped-call]
        assert job.is_finished, job.exc_info
        return int(job.return_value() or 0)


def test_better_models_are_promoted_and_training_waits_for_its_time(
    settings: Settings, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    serve(redis_url, 1200)
    store = ModelStore(settings.home)
    with caplog.at_level("INFO", logger="headway.chores"):
        assert work(redis_url) == 1
    assert store.serving() != "shipped"
    assert f"models {store.serving()} serves now" in caplog.text
    serve(redis_url, 1000, seed=1)
    assert work(redis_url) == 0  # not for another hour
    assert len(store.names()) == 2


def test_without_enough_new_outcomes_nothing_is_trained(settings: Settings, redis_url: str) -> None:
    serve(redis_url, 100)
    assert work(redis_url) == 0
    assert ModelStore(settings.home).trained_at() == 0


def test_zero_seconds_between_trainings_means_none(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Settings(redis_url=redis_url, home=tmp_path, retrain_s=0)
    monkeypatch.setattr(jobs, "_settings", lambda: never)
    serve(redis_url, 600)
    assert work(redis_url) == 0
    assert ModelStore(tmp_path).names() == ["shipped"]
