"""The engine worker's program: `python -m workers.main --pool NAME --engine URL|llamacpp`, or `headway worker`.

SIGTERM or SIGINT drains; a second one hands back at once. Exit code 0 after a drain, 2 for a wrong setting.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, get_args

import uvloop

from broker.config import EMBEDDED, Config, Dialect, load_config
from broker.connection import Pipe, check_servers
from broker.consumer import Consumer
from broker.errors import BrokerError, ConfigError, RedisAway, RedisUnsuitable
from broker.fleet import WorkerRecord, announce_pool
from broker.job import POOL_NAME, base32
from broker.policy import Asking
from broker.reaper import reap_forever
from broker.settings import Settings, load_settings
from workers.appender import Appender
from workers.batch.events import CeleryEvents
from workers.capacity import Plan
from workers.control import hear_aborts
from workers.engine import Engine, EngineUnavailable
from workers.engines.exchange import HttpOptions
from workers.engines.llamacpp import LlamaCppEngine
from workers.engines.openai_http import OpenAIEngine
from workers.execute import Backoff
from workers.heartbeat import Heartbeat
from workers.pull import Means, Observer, Puller

log = logging.getLogger("headway.worker")
ENGINE_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """One engine for one pool; None means: as headway.yaml or the engine says."""

    pool: str
    engine: str
    dialect: Dialect
    model: str | None
    slots: int | None
    api_key: str | None = None
    kv_tokens: int | None = None


def parse(argv: list[str], config: Config) -> Options:
    """Command line over headway.yaml. Exits with usage on a wrong flag; raises ConfigError on a wrong value."""
    parser = argparse.ArgumentParser(
        prog="headway worker",
        description="Pull jobs of one pool for one engine.",
        epilog="HEADWAY_REDIS_URL names the queue's Redis; without it, that of `headway up` in HEADWAY_HOME.",
    )
    parser.add_argument("--pool", required=True, help="the pool to serve, as in headway.yaml")
    parser.add_argument(
        "--engine", help="http://HOST:PORT of an OpenAI-compatible server, or llamacpp (embedded)"
    )
    parser.add_argument("--dialect", choices=get_args(Dialect), help="what the server is (default: openai)")
    parser.add_argument("--model", help="the engine's name for the model (default: the first it lists)")
    parser.add_argument("--slots", type=int, help="concurrent requests (default: what the engine says)")
    parser.add_argument(
        "--kv-tokens", type=int, help="size of the engine's KV cache (default: not looked at)"
    )
    args = parser.parse_args(argv)
    if not POOL_NAME.fullmatch(args.pool):
        raise ConfigError(f"--pool {args.pool!r}: a name is up to 64 letters, digits, '.', '_' and '-'")
    if args.slots is not None and not 0 < args.slots <= 4096:
        raise ConfigError(f"--slots {args.slots}: must be between 1 and 4096")
    known = config.find(args.pool)
    engine = args.engine or (known.engine if known else EMBEDDED)
    if engine != EMBEDDED and not engine.startswith(("http://", "https://")):
        raise ConfigError(f"--engine {engine!r}: must be http://HOST:PORT or {EMBEDDED}")
    from_file = known if known is not None and known.engine == engine.rstrip("/") else None
    return Options(
        pool=args.pool,
        engine=engine.rstrip("/"),
        dialect=args.dialect or (from_file.dialect if from_file else "openai"),
        model=args.model or (from_file.model if from_file else None),
        slots=args.slots or (from_file.slots if from_file else None),
        kv_tokens=args.kv_tokens or (from_file.kv_tokens if from_file else None),
        api_key=from_file.api_key.get_secret_value() if from_file and from_file.api_key else None,
    )


def warn_of_unknown_pool(pool: str, config: Config) -> None:
    """Allowed, for any worker may announce a pool; but mostly it is a slip."""
    names = [model.pool for model in config.models]
    if pool not in names:
        log.warning(
            "pool %s is not in headway.yaml here (it names %s): only requests whose `model` is %s come to it",
            pool,
            ", ".join(names),
            pool,
        )


def build_engine(options: Options, settings: Settings) -> Engine:
    if options.engine == EMBEDDED:
        return LlamaCppEngine(slots=options.slots or settings.slots)
    return OpenAIEngine(
        options.engine,
        dialect=options.dialect,
        model=options.model,
        slots=options.slots,
        options=HttpOptions(api_key=options.api_key),
    )


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
            slots, model = await self._start_engine()
            if not self._stop.is_set():
                await self._serve(stack, pipe, slots=slots, model=model)

    async def _start_engine(self) -> tuple[int, str]:
        """Waits for an engine that is not up yet; returns its slots and the name of its model."""
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
                return self._options.slots or limits.slots, self._options.model or limits.model or "unknown"
        return 0, ""

    async def _serve(self, stack: AsyncExitStack, pipe: Pipe, *, slots: int, model: str) -> None:
        settings, pool, url = self._settings, self._options.pool, self._settings.redis_url
        asking = Asking(self.worker_id, settings.lease_s, settings.aging, settings.passing)
        consumer = Consumer(pipe, url, pool=pool, asking=asking, limits=self._limits)
        stack.push_async_callback(consumer.close)
        heartbeat = Heartbeat(url, pool=pool, worker_id=self.worker_id, lease_s=settings.lease_s)
        appender = Appender(
            consumer, delay_s=settings.coalesce_ms / 1000, on_stale=lambda job_id: puller.abort(job_id, None)
        )
        backoff = Backoff(settings.retry_base_s, settings.retry_cap_s)
        means = Means(self._engine, consumer, appender, heartbeat, backoff)
        observers: list[Observer] = [CeleryEvents(settings, pool=pool, worker_id=self.worker_id)]
        puller = self._puller = Puller(
            means, plan=self._plan(slots), drain_s=settings.drain_s, observers=observers
        )
        await announce_pool(pipe, pool)
        heartbeat.start(self._describe(puller, slots=slots, model=model), puller.lost)
        tasks = [
            asyncio.create_task(appender.run()),
            asyncio.create_task(hear_aborts(url, pool, on_abort=puller.abort)),
            asyncio.create_task(reap_forever(pipe, lambda: [pool], limits=self._limits)),
        ]
        try:
            log.info(
                "worker %s serves pool %s with %d slots of %s", self.worker_id, pool, slots, self._engine.name
            )
            await puller.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(heartbeat.stop)
            for observer in observers:
                observer.close()
            await self._leave(consumer)

    def _plan(self, slots: int) -> Plan:
        after_s = self._settings.preempt_after_s or None
        return Plan(slots, self._settings.bulk_reserve, self._options.kv_tokens, after_s)

    async def _leave(self, consumer: Consumer) -> None:
        try:
            await consumer.leave()
        except RedisAway:
            log.info("left without taking leave of Redis; the record times out")

    def _describe(self, puller: Puller, *, slots: int, model: str) -> Callable[[], bytes]:
        """Runs in the heartbeat's thread: reads plain attributes only."""
        fixed: dict[str, Any] = {
            "worker_id": self.worker_id,
            "pool": self._options.pool,
            "engine": self._engine.name,
            "model": model,
            "slots": slots,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "engine_url": "" if self._options.engine == EMBEDDED else self._options.engine,
            "embedded": self._options.engine == EMBEDDED,
            "started": time.time(),
        }
        return lambda: WorkerRecord(
            **fixed, busy_slots=puller.ledger.busy, state=puller.state, claimed=puller.claimed
        ).dump()


async def check_redis(settings: Settings) -> None:
    await check_servers(settings.redis_url, timeout_s=settings.redis_timeout_s)


async def serve(settings: Settings, options: Options) -> None:
    engine = build_engine(options, settings)
    await Worker(settings, options, engine=engine).run()


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        settings = load_settings()
        config = load_config(settings)
        options = parse(sys.argv[1:] if argv is None else argv, config)
        logging.basicConfig(
            level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        warn_of_unknown_pool(options.pool, config)
        uvloop.run(serve(settings, options))
    except (ConfigError, RedisUnsuitable) as error:
        print(f"headway worker: {error}", file=sys.stderr)  # noqa: T201 - a program's last words
        return 2
    except BrokerError as error:
        print(f"headway worker: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
