"""What the handlers work with, opened and closed with the process. Found at `request.app.state.services`."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from starlette.requests import Request

from api.keyring import Keyring
from api.live import Live
from api.metering import Metering
from api.metrics.tally import Tally
from api.outages import Diversion
from api.routing import Chooser
from api.snapshots import FleetCache
from broker.api_keys import KeyStore
from broker.celery_options import celery_options
from broker.config import Config
from broker.connection import Pipe, check_servers
from broker.errors import BrokerError, RedisAway
from broker.heirs import Heirs
from broker.job import base32
from broker.policy import Asking
from broker.producer import Producer
from broker.reaper import reap_forever
from broker.rescue import Rescuer
from broker.settings import Settings
from broker.stream import ReplyHub
from predictor.estimator import Estimator, SimpleEstimator
from predictor.foresight import Foresight, learned_estimator
from predictor.model_store import ModelStore
from predictor.router import Router

log = logging.getLogger("headway.api")
ABANDON_PATIENCE_S = 120.0
ABANDON_RETRY_S = 0.5
FAREWELL_S = 3.0  # for cancellations that are on their way when the process stops


@dataclass(slots=True)
class Services:
    """One per process, one event loop. `celery_send(task name, ids…)` returns an awaitable that need not be awaited."""

    settings: Settings
    live: Live
    pipe: Pipe
    hub: ReplyHub
    producer: Producer
    estimator: Estimator
    fleet: FleetCache
    chooser: Chooser
    foresight: Foresight
    celery_send: Callable[..., "asyncio.Future[None]"]
    metering: Metering
    tally: Tally
    errands: set["asyncio.Task[None]"] = field(default_factory=set)
    diversion: Diversion = field(init=False)

    def __post_init__(self) -> None:
        self.diversion = Diversion(self.fleet)

    @property
    def config(self) -> Config:
        """As it is now: it may have been read again."""
        return self.live.config

    def abandon(self, job_id: str) -> None:
        """Cancels a job whose caller has gone; goes on if the caller's own task is cancelled."""
        self.spawn(self._cancel(job_id))

    def expire(self, job_id: str) -> None:
        """Has a job end at its deadline, for whose answer somebody waits."""
        self.spawn(self._expire(job_id))

    async def _expire(self, job_id: str) -> None:
        with contextlib.suppress(RedisAway):  # then the reaper does it
            await self.producer.expire(job_id)

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


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


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
async def open_services(
    settings: Settings, config: Config, *, keyring: Keyring | None = None, watch_file: bool = False
) -> AsyncIterator[Services]:
    """`watch_file`: whether `headway.yaml` is read again when it changes. Raises RedisAway or RedisUnsuitable if the server is not there or not fit to hold a queue; ConfigError as `Keyring.check_door`."""
    await check_servers(settings.redis_url, timeout_s=settings.redis_timeout_s)
    async with contextlib.AsyncExitStack() as stack:
        pipe = Pipe(settings.redis_url, timeout_s=settings.redis_timeout_s)
        stack.push_async_callback(pipe.close)
        hub = ReplyHub(settings.redis_url)
        stack.push_async_callback(hub.close)
        await hub.start()
        sender = CelerySender(settings.celery_url)
        stack.callback(sender.close)
        fleet = FleetCache(pipe, config)
        live = Live(settings, config, keyring=keyring or Keyring(settings, config), fleet=fleet)
        await live.learn_keys(KeyStore(pipe))
        live.keyring.check_door()
        foresight = Foresight(
            pipe,
            learned_estimator(config),
            store=ModelStore(settings.home),
            name=f"api-{os.getpid()}-{base32(time.time_ns(), 8)}",
        )
        services = Services(
            settings=settings,
            live=live,
            pipe=pipe,
            hub=hub,
            producer=Producer(pipe, settings.order, limits_of=live.queue_limits),
            estimator=foresight.estimator if settings.predictor == "learned" else SimpleEstimator(),
            fleet=fleet,
            chooser=Chooser(pipe, fleet, router=Router()),
            foresight=foresight,
            celery_send=sender,
            metering=Metering(pipe, is_open=settings.limits_without_redis == "open"),
            tally=Tally(pipe),
        )
        tasks = [asyncio.create_task(loop) for loop in _loops(services, watch_file=watch_file)]
        stack.push_async_callback(_stop, services, tasks)
        yield services


def _loops(services: Services, *, watch_file: bool) -> list[Coroutine[Any, Any, None]]:
    """What the process does besides answering."""
    pipe, queues, live = services.pipe, services.fleet.seen_queues, services.live
    loops = [
        reap_forever(pipe, queues, limits=services.settings.limits),
        services.metering.settle_ends(queues, wanted=lambda: live.keyring.limits_anybody),
        live.run(KeyStore(pipe), watch_file=watch_file),
        services.diversion.run(_rescuer(services)),
        services.tally.run(),
    ]
    if services.settings.predictor == "learned":
        loops.append(services.foresight.run())
    return loops


def _rescuer(services: Services) -> Rescuer:
    """Brings jobs to other pools. They were accepted once: no limit refuses them."""
    settings, live = services.settings, services.live
    heirs = Heirs(
        services.pipe, Producer(services.pipe, settings.order), forecast=services.estimator.forecast
    )
    asking = Asking(f"rescue-{os.getpid()}-{base32(time.time_ns(), 8)}", settings.lease_s, settings.aging)
    return Rescuer(
        services.pipe,
        settings.redis_url,
        heirs=heirs,
        asking=asking,
        weight_of=lambda name: live.config.tenant(name).weight,
    )


async def _stop(services: Services, tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if services.errands:
        await asyncio.wait(services.errands, timeout=FAREWELL_S)
