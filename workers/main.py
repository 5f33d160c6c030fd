"""The engine worker's program: `python -m workers.main --pool NAME --engine URL|llamacpp`, or `headway worker`.

SIGTERM or SIGINT drains; a second one hands back at once. Exit code 0 after that, 10 after a drain that an operator
wished for (steering.py), 2 for a wrong setting, 1 when a part of it has failed (after a drain).
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import uvloop

from broker import logs
from broker.config import EMBEDDED, load_config
from broker.connection import Pipe, check_servers
from broker.consumer import Consumer
from broker.errors import BrokerError, ConfigError, RedisAway, RedisUnsuitable
from broker.fleet import WorkerRecord
from broker.heirs import Heirs
from broker.job import ServiceClass, base32
from broker.policy import Asking
from broker.producer import Producer
from broker.reaper import reap_forever
from broker.served import Served, choose_home, home_first, keep_fresh
from broker.settings import Settings, load_settings
from broker.steering import DISMISSED
from broker.tracing import open_spans
from predictor.estimator import SimpleEstimator
from workers.accounts import Accounts
from workers.appender import Appender
from workers.batch.events import CeleryEvents
from workers.beside import beside
from workers.capacity import Plan
from workers.control import hear_aborts
from workers.description import Description
from workers.engine import Engine, EngineLimits, EngineUnavailable
from workers.execute import Backoff
from workers.heartbeat import Heartbeat
from workers.kv_pages import PAGE_TOKENS
from workers.load_watch import LoadWatch
from workers.means import Means
from workers.notables import Notables
from workers.options import Options, build_engine, parse, warn_of_unknown_pool
from workers.outcomes import Reporter
from workers.pace import Pace
from workers.pull import Puller
from workers.recent import Recent
from workers.sight import Runs, Sight, Teller

if TYPE_CHECKING:
    from workers.traces import Traces

log = logging.getLogger("headway.worker")
ENGINE_RETRY_S = 1.0


class Worker:
    """Wires the parts of one worker process together and runs them in order."""

    def __init__(self, settings: Settings, options: Options, *, engine: Engine) -> None:
        self._settings = settings
        self._options = options
        self._engine = engine
        self._limits = settings.limits
        self.worker_id = f"{socket.gethostname()[:24]}-{os.getpid()}-{base32(time.time_ns(), 5)}"
        self._stop = asyncio.Event()
        self._puller: Puller | None = None
        self._signals = 0

    def on_signal(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._puller is not None:
            self._puller.drain()
            if self._signals > 1:
                self._puller.hand_back()

    @property
    def dismissed(self) -> bool:
        """An operator has drained it: it is not to be started again."""
        return self._puller is not None and self._puller.dismissed

    async def run(self) -> None:
        """Until a signal. Raises ConfigError, RedisUnsuitable, RedisAway at the start only."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal)
        async with AsyncExitStack() as stack:
            pipe = Pipe(self._settings.redis_url, timeout_s=self._settings.redis_timeout_s)
            stack.push_async_callback(pipe.close)
            await check_redis(self._settings)
            stack.push_async_callback(self._engine.close)
            limits = await self._start_engine()
            if limits is not None:
                await self._serve(stack, pipe, limits=limits)

    async def _start_engine(self) -> EngineLimits | None:
        """Waits for an engine that is not up yet; what it can do, where the options do not say. None: stopped before."""
        told = False
        while not self._stop.is_set():
            try:
                await self._engine.start()
                limits = await self._engine.limits()
            except EngineUnavailable as error:
                if not told:
                    log.warning("waiting for engine %s: %s", self._engine.name, error)
                told = True
                await asyncio.wait({asyncio.create_task(self._stop.wait())}, timeout=ENGINE_RETRY_S)
            else:
                return limits
        return None

    async def _serve(self, stack: AsyncExitStack, pipe: Pipe, *, limits: EngineLimits) -> None:
        settings, pool, url = self._settings, self._options.pool, self._settings.redis_url
        served = await self._served(pipe)
        consumer = Consumer(pipe, url, pool=served, asking=self._asking(), limits=self._limits)
        stack.push_async_callback(consumer.close)
        heartbeat = Heartbeat(url, pool=served, worker_id=self.worker_id, lease_s=settings.lease_s)
        appender = Appender(
            consumer, delay_s=settings.coalesce_ms / 1000, on_stale=lambda job_id: puller.abort(job_id, None)
        )
        backoff = Backoff(settings.retry_base_s, settings.retry_cap_s)
        tellers, traces = self._tellers(pipe, pace=lambda: puller.ledger.pace), self._traces(stack)
        followers = (*tellers, *((traces,) if traces else ()))
        sight = Sight(*followers, before=traces.before if traces else None)
        means = Means(sight.watch(self._engine), consumer, appender, heartbeat, backoff, self._heirs(pipe))
        events = CeleryEvents(settings, pool=pool, worker_id=self.worker_id)
        plan, observers = self._plan(limits), (events, sight)
        puller = self._puller = Puller(means, plan=plan, drain_s=settings.drain_s, observers=observers)
        watch = LoadWatch(self._engine, every_s=settings.engine_load_s, on_look=puller.ledger.observe)
        await served.join(pipe)
        recent = Recent(puller.ledger, watch)
        describe = self._describe(puller, recent, model=self._options.model or limits.model, home=served.home)
        heartbeat.start(describe, puller.lost, on_wish=puller.heed)
        parts: tuple[Runs, ...] = (appender, watch, recent, *tellers)
        loops = (
            *(part.run() for part in parts),
            puller.health.run(settings.health_s),
            keep_fresh(served, pipe),
            hear_aborts(url, served, on_abort=puller.abort, on_call=heartbeat.called),
            reap_forever(pipe, served.to_reap, limits=self._limits),
        )
        log.info("worker %s serves %s with %d slots", self.worker_id, ", ".join(served.queues), plan.slots)
        try:
            async with beside(loops, on_failure=puller.drain):
                await puller.run()
        finally:
            await asyncio.to_thread(heartbeat.stop)
            for teller in tellers:
                await teller.flush()
            events.close()
            await self._leave(consumer)

    def _tellers(self, pipe: Pipe, *, pace: Callable[[], Pace]) -> tuple[Teller, ...]:
        accounts = Accounts(pipe, worker_id=self.worker_id, price=self._options.price, pace=pace)
        reporter = Reporter(pipe, memory=self._settings.memory)
        return reporter, accounts, Notables(pipe, worker_id=self.worker_id)

    def _traces(self, stack: AsyncExitStack) -> "Traces | None":
        """Raises ConfigError."""
        spans = open_spans(self._settings, "headway-worker", instance=self.worker_id)
        if spans is None:
            return None
        from workers.traces import Traces  # noqa: PLC0415 - imports OpenTelemetry

        stack.push_async_callback(asyncio.to_thread, spans.close)
        return Traces(spans, worker_id=self.worker_id)

    async def _served(self, pipe: Pipe) -> Served:
        """At home in a shard of the first pool. Raises RedisAway."""
        first, *others = self._options.queues
        if self._options.shard is None:
            home = await choose_home(pipe, first, worker_id=self.worker_id)
        else:
            home = first[self._options.shard]
        return Served([*home_first(first, home), *(queue for queues in others for queue in queues)])

    def _heirs(self, pipe: Pipe) -> Heirs:
        """What was accepted once is not refused for a limit."""
        producer, most = Producer(pipe, self._settings.order), self._limits.max_deaths
        return Heirs(pipe, producer, forecast=SimpleEstimator().forecast, max_deaths=most)

    def _asking(self) -> Asking:
        settings, options = self._settings, self._options
        aging, passing = settings.aging, settings.passing
        return Asking(self.worker_id, settings.lease_s, aging, passing, options.speed, options.classes)

    def _plan(self, limits: EngineLimits) -> Plan:
        settings, options = self._settings, self._options
        takes_p0 = ServiceClass.P0 in options.classes
        return Plan(
            slots=options.slots or limits.slots,
            reserve=settings.bulk_reserve,
            reserve_most=settings.bulk_reserve_max if takes_p0 else 0.0,
            kv_tokens=options.kv_tokens or limits.kv_tokens,
            page_tokens=limits.kv_page_tokens or PAGE_TOKENS,
            preempt_after_s=(settings.preempt_after_s or None) if takes_p0 else None,
            prefill_tokens=settings.prefill_tokens or None,
            finds_slots=options.slots is None and not limits.slots_known,
        )

    def _describe(
        self, puller: Puller, recent: Recent, *, model: str | None, home: str
    ) -> Callable[[], bytes]:
        options = self._options
        first = WorkerRecord(
            worker_id=self.worker_id,
            pool=options.pool,
            home=home,
            engine=self._engine.name,
            model=model or "unknown",
            slots=0,
            busy_slots=0,
            state=puller.state,
            pid=os.getpid(),
            host=socket.gethostname(),
            engine_url="" if options.engine == EMBEDDED else options.engine,
            embedded=options.engine == EMBEDDED,
            started=time.time(),
        )
        return Description(first, puller, recent, self._engine).dump

    async def _leave(self, consumer: Consumer) -> None:
        try:
            await consumer.leave()
        except RedisAway:
            log.info("left without taking leave of Redis; the record times out")


async def check_redis(settings: Settings) -> None:
    await check_servers(settings.redis_url, timeout_s=settings.redis_timeout_s)


async def serve(settings: Settings, options: Options) -> int:
    """Until it has drained; returns the exit code."""
    worker = Worker(settings, options, engine=build_engine(options, settings))
    await worker.run()
    return DISMISSED if worker.dismissed else 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        settings = load_settings()
        config = load_config(settings)
        options = parse(sys.argv[1:] if argv is None else argv, config)
        logs.configure(settings, "worker")
        warn_of_unknown_pool(options.pool, config)
        return uvloop.run(serve(settings, options))
    except (ConfigError, RedisUnsuitable) as error:
        print(f"headway worker: {error}", file=sys.stderr)  # noqa: T201 - a program's last words
        return 2
    except BrokerError as error:
        print(f"headway worker: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
