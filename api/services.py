"""What the handlers work with, opened and closed with the process. Found at `request.app.state.services`."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from api.snapshots import FleetCache
from broker.celery_options import celery_options
from broker.config import Config
from broker.connection import Pipe, check_servers
from broker.errors import BrokerError, RedisAway
from broker.producer import Producer
from broker.reaper import reap_forever
from broker.settings import Settings
from broker.stream import ReplyHub
from predictor.estimator import Estimator, SimpleEstimator

log = logging.getLogger("headway.api")
ABANDON_PATIENCE_S = 120.0
ABANDON_RETRY_S = 0.5
FAREWELL_S = 3.0  # for cancellations that are on their way when the process stops


@dataclass(frozen=True, slots=True)
class Services:
    """One per process, one event loop. `celery_send(task name, ids…)` returns an awaitable that need not be awaited."""

    settings: Settings
    config: Config
    pipe: Pipe
    hub: ReplyHub
    producer: Producer
    estimator: Estimator
    fleet: FleetCache
    celery_send: Callable[..., "asyncio.Future[None]"]
    errands: set["asyncio.Task[None]"] = field(default_factory=set)

    def abandon(self, job_id: str) -> None:
        """Cancels a job whose caller has gone; goes on if the caller's own task is cancelled."""
        self.spawn(self._cancel(job_id))

    def spawn(self, errand: Coroutine[Any, Any, None]) -> None:
        """Runs to its end beside the request; waited for when the process stops."""
        task = asyncio.create_task(errand)
        self.errands.add(task)
        task.add_done_callback(self.errands.discard)

    async def _cancel(self, job_id: str) -> None:
        """Until Redis has taken it: also a submission whose answer got lost may have been queued."""
        give_up = asyncio.get_running_loop().time() + ABANDON_PATIENCE_S
        while True:
            try:
                await self.producer.cancel(job_id)
            except RedisAway:
                if asyncio.get_running_loop().time() > give_up:
                    log.warning("%s was not cancelled: Redis is away; its deadline ends it", job_id)
                    return
                await asyncio.sleep(ABANDON_RETRY_S)
            except BrokerError as error:  # never queued
                log.debug("%s was not cancelled: %s", job_id, error)
                return
            else:
                return


class CelerySender:
    """Sends tasks by name, so that the API imports no worker. One thread: the client blocks while it connects."""

    def __init__(self, url: str) -> None:
        self._celery = Celery("headway", set_as_current=False)
        self._celery.conf.update(celery_options(url))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="celery-send")

    def __call__(self, task_name: str, *ids: str) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().run_in_executor(self._thread, self._send, task_name, ids)

    def _send(self, task_name: str, ids: tuple[str, ...]) -> None:
        """A message that is lost is made up for: a held job lets itself in, a sweeper sends batches again."""
        try:
            self._celery.send_task(task_name, args=ids, retry=False)
        except (OperationalError, RedisError, OSError) as error:
            log.warning("Celery did not take %s(%s): %s", task_name, ", ".join(ids), error)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._celery.close()


@contextlib.asynccontextmanager
async def open_services(settings: Settings, config: Config) -> AsyncIterator[Services]:
    """Raises RedisAway or RedisUnsuitable if the server is not there or not fit to hold a queue."""
    await check_servers(settings.redis_url, timeout_s=settings.redis_timeout_s)
    async with contextlib.AsyncExitStack() as stack:
        pipe = Pipe(settings.redis_url, timeout_s=settings.redis_timeout_s)
        stack.push_async_callback(pipe.close)
        hub = ReplyHub(settings.redis_url)
        stack.push_async_callback(hub.close)
        await hub.start()
        sender = CelerySender(settings.celery_url)
        stack.callback(sender.close)
        services = Services(
            settings=settings,
            config=config,
            pipe=pipe,
            hub=hub,
            producer=Producer(pipe, settings.order),
            estimator=SimpleEstimator(),
            fleet=FleetCache(pipe, config),
            celery_send=sender,
        )
        reaper = asyncio.create_task(reap_forever(pipe, services.fleet.seen_pools, limits=settings.limits))
        stack.push_async_callback(_stop, services, reaper)
        yield services


async def _stop(services: Services, reaper: "asyncio.Task[None]") -> None:
    reaper.cancel()
    await asyncio.gather(reaper, return_exceptions=True)
    if services.errands:
        await asyncio.wait(services.errands, timeout=FAREWELL_S)
