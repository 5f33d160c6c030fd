"""What the tasks of one Celery worker process share: an event loop in a thread, connections, stores.

Celery's tasks run in a pool of threads; each hands its coroutine to this loop and waits. So one connection and one
subscription serve all of them.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from broker.batches import BatchStore
from broker.config import Config
from broker.connection import Pipe
from broker.errors import RedisAway
from broker.files import FileStore
from broker.job import base32
from broker.producer import Producer
from broker.settings import Settings
from broker.storage import Storage
from broker.stream import ReplyHub
from predictor.estimator import Estimator, SimpleEstimator
from predictor.foresight import Foresight, learned_estimator
from predictor.model_store import ModelStore

log = logging.getLogger("headway.batch")
T = TypeVar("T")
RETRY_S = 0.5
HOLD_S = 60.0  # no job is held for longer (api/jobs.py)


@dataclass(frozen=True, slots=True)
class Means:
    """Lives in the loop of `LoopThread`; only coroutines there may use it."""

    settings: Settings
    config: Config
    pipe: Pipe
    hub: ReplyHub
    producer: Producer
    files: FileStore
    batches: BatchStore
    estimator: Estimator
    stopping: asyncio.Event
    learning: "asyncio.Task[None] | None" = None  # keeps the estimator up to date


async def let_in(means: Means, job_id: str) -> bool:
    """Lets a single job out of its hold: as soon as Redis is back if it is away, rather than when the hold ends. False: it was not held.

    Raises RedisAway when the hold is over, or the process stops.
    """
    until = time.monotonic() + HOLD_S
    while True:
        try:
            return await means.producer.feed(job_id)
        except RedisAway:
            if means.stopping.is_set() or time.monotonic() > until:
                raise
            await asyncio.sleep(RETRY_S)


async def open_means(settings: Settings, config: Config) -> Means:
    """Waits for Redis as long as it takes."""
    pipe = Pipe(settings.redis_url, timeout_s=settings.redis_timeout_s)
    hub = ReplyHub(settings.redis_url)
    while True:
        try:
            await hub.start()
            break
        except RedisAway as error:
            log.warning("waiting for Redis: %s", error)
            await asyncio.sleep(RETRY_S)
    estimator, learning = _estimator(settings, config, pipe=pipe)
    return Means(
        settings=settings,
        config=config,
        pipe=pipe,
        hub=hub,
        producer=Producer(pipe, settings.order, limits_of=config.limits_of(max_queued=settings.max_queued)),
        files=FileStore(pipe, Storage(settings.files_url), ttl_s=settings.batch_ttl_s),
        batches=BatchStore(pipe, ttl_s=settings.batch_ttl_s),
        estimator=estimator,
        stopping=asyncio.Event(),
        learning=learning,
    )


def _estimator(
    settings: Settings, config: Config, *, pipe: Pipe
) -> tuple[Estimator, "asyncio.Task[None] | None"]:
    if settings.predictor == "simple":
        return SimpleEstimator(), None
    name = f"batch-{os.getpid()}-{base32(time.time_ns(), 8)}"
    foresight = Foresight(pipe, learned_estimator(config), ModelStore(settings.home), name)
    return foresight.estimator, asyncio.create_task(foresight.run())


class LoopThread:
    """Started with the first task. `open` makes the means inside the loop."""

    def __init__(self, open_: Callable[[], Coroutine[Any, Any, Means]]) -> None:
        self._open = open_
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._means: Means | None = None

    def submit(self, work: Callable[[Means], Coroutine[Any, Any, T]]) -> "concurrent.futures.Future[T]":
        """Runs a coroutine in the loop. Called from any other thread."""
        means = self._started()
        return asyncio.run_coroutine_threadsafe(work(means), self._loop)

    def stop(self) -> None:
        """Has tasks hand back what they do. The loop goes on until the process ends."""
        if self._means is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._means.stopping.set)

    def _started(self) -> Means:
        with self._lock:
            if self._means is None:
                threading.Thread(target=self._loop.run_forever, name="batch-loop", daemon=True).start()
                self._means = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
            return self._means
