"""The chores' program: an RQ worker that runs them in its own process, a second one for the slow ones in a thread, and beside
them the schedule that queues them.

    python -m workers.chores.main

The same as two programs, for those who run RQ their own way:

    rq worker -u URL -S json -w rq.SimpleWorker chores slow-chores
    rq cron -u URL workers.chores.cron

Idle it blocks in Redis, and queues the sweeper every ten seconds. SIGTERM ends it after the chore that runs.
"""

import logging
import sys
import threading
import time

import redis
from redis.exceptions import RedisError
from redis.sentinel import Sentinel
from rq import Queue, SimpleWorker
from rq.cron import CronScheduler
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty

from broker import logs
from broker.errors import ConfigError
from broker.settings import Settings, load_settings
from broker.topology import parse
from workers.chores import cron

log = logging.getLogger("headway.chores")
RETRY_S = 2.0


class Schedule:
    """Queues chores when they are due, in a thread: RQ's own loop would take the process's signals."""

    def __init__(self, url: str) -> None:
        self._scheduler = CronScheduler(open_redis(url), logging_level=logging.WARNING)
        self._scheduler.load_config_from_file(cron.__name__)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cron", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._serve()
            except (RedisError, OSError) as error:
                log.warning("the schedule waits for Redis: %s", error)
                self._stop.wait(RETRY_S)

    def _serve(self) -> None:
        self._scheduler.register_birth()
        try:
            while not self._stop.is_set():
                if self._scheduler.enqueue_jobs():
                    self._scheduler.save()
                self._scheduler.heartbeat()
                self._stop.wait(max(0.1, self._scheduler.calculate_sleep_interval()))
        finally:
            self._scheduler.register_death()


class SlowWorker(SimpleWorker):
    """Runs in a thread, and is cut off when the process ends: a training begins anew."""

    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self) -> None:
        """Signals are the other worker's."""


def work_slowly(url: str) -> None:
    """For ever."""
    while True:
        try:
            worker_of(SlowWorker, open_redis(url), queue=cron.SLOW_QUEUE).work(logging_level="WARNING")
        except (RedisError, OSError) as error:
            log.warning("slow chores wait for Redis: %s", error)
        time.sleep(RETRY_S)


def worker_of(kind: type[SimpleWorker], connection: redis.Redis, *, queue: str) -> SimpleWorker:
    queues = [Queue(queue, connection=connection, serializer=JSONSerializer)]
    return kind(queues, connection=connection, serializer=JSONSerializer)


def open_redis(url: str) -> redis.Redis:
    """Of a single server or a Sentinel group. Raises ConfigError."""
    topology = parse(url)
    if topology.kind == "single":
        return redis.Redis.from_url(url)
    group = Sentinel([])  # type: ignore[no-untyped-call]
    group.sentinels = [
        redis.Redis.from_url(topology.sentinel(h), socket_timeout=RETRY_S) for h in topology.hosts
    ]
    login = redis.connection.parse_url(topology.node(topology.hosts[0]))  # type: ignore[no-untyped-call]
    known = {name: login[name] for name in ("username", "password", "db") if name in login}
    master: redis.Redis = group.master_for(topology.service, ssl=topology.tls, **known)  # type: ignore[no-untyped-call]
    return master


def serve(settings: Settings) -> None:
    """Until a signal."""
    worker = worker_of(SimpleWorker, open_redis(settings.chores_url), queue=cron.QUEUE)
    schedule = Schedule(settings.chores_url)
    schedule.start()
    threading.Thread(target=work_slowly, args=(settings.chores_url,), name="slow", daemon=True).start()
    try:
        worker.work(logging_level="WARNING")
    finally:
        schedule.stop()


def main() -> int:
    """Entry point; returns the exit code."""
    try:
        settings = load_settings()
    except ConfigError as error:
        print(f"headway chores: {error}", file=sys.stderr)  # noqa: T201 - a program's last words
        return 2
    logs.configure(settings, "chores")
    logging.getLogger("rq").setLevel(logging.WARNING)  # it reports every run
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every address that is called
    serve(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
