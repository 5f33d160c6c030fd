"""The chores' program: an RQ worker that runs them in its own process, and beside it the schedule that queues them.

    python -m workers.chores.main

The same as two programs, for those who run RQ their own way:

    rq worker -u URL -S json -w rq.SimpleWorker chores
    rq cron -u URL workers.chores.cron

Idle it blocks in Redis, and queues the sweeper every ten seconds. SIGTERM ends it after the chore that runs.
"""

import logging
import sys
import threading

import redis
from redis.exceptions import RedisError
from redis.sentinel import Sentinel
from rq import Queue, SimpleWorker
from rq.cron import CronScheduler
from rq.serializers import JSONSerializer

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
    connection = open_redis(settings.chores_url)
    queue = Queue(cron.QUEUE, connection=connection, serializer=JSONSerializer)
    worker = SimpleWorker([queue], connection=connection, serializer=JSONSerializer)
    schedule = Schedule(settings.chores_url)
    schedule.start()
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
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("rq").setLevel(logging.WARNING)  # it reports every run
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every address that is called
    serve(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
