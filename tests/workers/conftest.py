"""A puller on a real Redis with a scripted engine, and a producer beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import WorkerRecord
from broker.heirs import Heirs
from broker.job import Forecast, JobView, ServiceClass, Submission, new_job_id
from broker.policy import Asking, Limits
from broker.producer import Producer
from broker.served import Served
from predictor.estimator import SimpleEstimator
from tests.conditions import wait_until
from tests.workers.scripted import ScriptedEngine
from workers.appender import Appender
from workers.capacity import Plan
from workers.control import hear_aborts
from workers.execute import Backoff
from workers.heartbeat import Heartbeat
from workers.means import Means, Observer
from workers.pull import Puller

POOL = "small"


def submission(**changes: object) -> Submission:
    """A streamed, polled chat job, changed as told."""
    values: dict[str, object] = {
        "job_id": new_job_id(POOL),
        "service_class": ServiceClass.P0,
        "endpoint": "/v1/chat/completions",
        "body": b'{"messages":[]}',
        "forecast": Forecast(5, 10, 0.1),
        "stream": True,
    }
    return Submission(**(values | changes))  # type: ignore[arg-type]


@dataclass
class Rig:
    """One running worker and what a test looks at."""

    url: str
    pipe: Pipe
    producer: Producer
    engine: ScriptedEngine
    puller: Puller
    heartbeat: Heartbeat
    running: "asyncio.Task[None]"
    worker_id: str

    async def submit(self, **changes: object) -> str:
        job = submission(**changes)
        await self.producer.submit(job)
        return job.job_id

    async def ended(self, job_id: str) -> JobView:
        async def look() -> JobView | None:
            view = await self.producer.get(job_id)
            return view if view.status.terminal else None

        view: JobView = await wait_until(look, what=f"{job_id} ends")
        return view


@dataclass
class Maker:
    """Starts workers and stops them after the test."""

    url: str
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __call__(
        self,
        engine: ScriptedEngine,
        *,
        limits: Limits | None = None,
        drain_s: float = 5.0,
        observers: tuple[Observer, ...] = (),
        queues: tuple[str, ...] = (POOL,),
        classes: frozenset[ServiceClass] = frozenset(ServiceClass),
        plan: Plan | None = None,
    ) -> Rig:
        """`queues`: home first. `plan`: by default the engine's slots, and little patience."""
        limits, served = limits or Limits(), Served(queues)
        pipe = Pipe(self.url)
        self.stack.push_async_callback(pipe.close)
        name = f"w{id(pipe)}"
        asking = Asking(name, limits.lease_s, classes=classes)
        consumer = Consumer(pipe, self.url, pool=served, asking=asking, limits=limits)
        self.stack.push_async_callback(consumer.close)
        heartbeat = Heartbeat(self.url, pool=served, worker_id=name, lease_s=limits.lease_s)
        appender = Appender(consumer, delay_s=0.01, on_stale=lambda job: puller.abort(job, None))
        heirs = Heirs(pipe, Producer(pipe), forecast=SimpleEstimator().forecast)
        means = Means(engine, consumer, appender, heartbeat, Backoff(0.01, 0.05), heirs)
        plan = plan or Plan(engine.slots, preempt_after_s=0.01)
        puller = Puller(means, plan=plan, drain_s=drain_s, observers=observers)
        record = WorkerRecord(
            name, POOL, "scripted", "m", engine.slots, 0, "ready", 1, "here", home=served.home
        ).dump()
        heartbeat.start(lambda: record, puller.lost, on_wish=puller.heed)
        tasks = [
            asyncio.create_task(appender.run()),
            asyncio.create_task(
                hear_aborts(self.url, served, on_abort=puller.abort, on_call=heartbeat.called)
            ),
        ]
        running = asyncio.create_task(puller.run())

        rig = Rig(self.url, pipe, Producer(pipe), engine, puller, heartbeat, running, name)
        self.stack.push_async_callback(stop, rig, tasks)
        return rig


async def stop(rig: Rig, tasks: "list[asyncio.Task[None]]") -> None:
    rig.puller.drain()
    rig.puller.hand_back()
    await rig.running
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(rig.heartbeat.stop)


@pytest.fixture
async def worker(redis_url: str) -> AsyncIterator[Callable[..., object]]:
    """Call it with an engine to get a running Rig."""
    maker = Maker(redis_url)
    async with maker.stack:
        yield maker
