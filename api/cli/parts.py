"""What `headway up` runs: the parts and their command lines, all in this one place.

`headway up` starts them; `docs/architecture.md` draws them. A part is found in `up.json` by its name and kind.
"""

import sys
from dataclasses import dataclass
from typing import Literal

from api.cli.redis_server import RedisServer
from broker.config import Config, ModelConfig
from broker.settings import Settings

Kind = Literal["redis", "api", "worker", "celery", "rq", "flower"]
# Those that hold jobs stop first, those that the others need last
STOP_ORDER: tuple[tuple[Kind, ...], ...] = (("worker",), ("api", "celery", "rq", "flower"), ("redis",))
HAND_BACK_S = 5.0  # for a worker to release what did not finish within the drain time
CELERY_APP = "workers.batch.app"


@dataclass(frozen=True, slots=True)
class Part:
    """One process to be.

    `grace_s`: from SIGTERM to SIGKILL. `inherit`: file descriptors that it takes over. Ready is whoever answers 200 at
    `ready_path` below its URL, or is in `ready_pool` with a ready engine; the rest as soon as it runs. `optional`: the
    others do without it.
    """

    name: str
    kind: Kind
    argv: tuple[str, ...]
    url: str | None = None
    grace_s: float = 5.0
    inherit: tuple[int, ...] = ()
    ready_path: str = ""
    ready_pool: str = ""
    optional: bool = False


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def redis_part(server: RedisServer) -> Part:
    return Part(name="redis", kind="redis", argv=tuple(server.argv), url=server.url, grace_s=30.0)


def api_part(url: str, config: Config, *, listener: int) -> Part:
    """`listener`: the listening socket. The supervisor keeps it, so callers wait while the API is started again.

    `/readyz` wants an engine in every pool; engines at an address may be started later than Headway.
    """
    argv = python("api.cli.serve", "--fd", str(listener))
    ready_path = "/readyz" if all(model.embedded for model in config.models) else "/healthz"
    return Part(name="api", kind="api", argv=argv, url=url, inherit=(listener,), ready_path=ready_path)


def worker_part(model: ModelConfig, *, settings: Settings) -> Part:
    """Slots, the engine's model name and key are read from headway.yaml by the worker: a key is no argument."""
    argv = python("workers.main", "--pool", model.pool, "--engine", model.engine)
    if not model.embedded:
        argv = (*argv, "--dialect", model.dialect)
    grace_s = settings.drain_s + HAND_BACK_S
    pool = model.pool if model.embedded else ""
    return Part(name=f"worker-{model.pool}", kind="worker", argv=argv, grace_s=grace_s, ready_pool=pool)


def celery_part(settings: Settings) -> Part:
    """Everything else, its concurrency among it, is in the app."""
    argv = python(
        "celery", "-A", CELERY_APP, "worker", "--pool", "threads", "-n", "batch@%h", "--task-events"
    )
    options = ("--without-gossip", "--without-mingle", "--loglevel", settings.log_level)
    return Part(name="celery", kind="celery", argv=(*argv, *options), grace_s=HAND_BACK_S)


def rq_part() -> Part:
    return Part(name="rq", kind="rq", argv=python("workers.chores.main"))


def flower_part(port: int) -> Part:
    argv = python("celery", "-A", CELERY_APP, "flower", "--address=127.0.0.1", f"--port={port}")
    return Part(
        name="flower",
        kind="flower",
        argv=(*argv, "--persistent=False", "--max_tasks=10000", "--logging=warning"),
        url=f"http://127.0.0.1:{port}",
        ready_path="/healthcheck",
        optional=True,
    )


def engine_parts(settings: Settings, config: Config, *, flower_port: int) -> list[Part]:
    """All that Python runs but the API."""
    workers = [worker_part(model, settings=settings) for model in config.models]
    return [*workers, celery_part(settings), rq_part(), flower_part(flower_port)]
