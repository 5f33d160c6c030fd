"""The part of `headway doctor` that looks at the pools: has each a ready worker, does its engine answer?"""

import asyncio

from api.cli.finding import Finding, Level
from api.cli.home import Home, Identity
from api.cli.listener import answers
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.errors import BrokerError
from broker.fleet import PoolView, look_pool
from broker.settings import Settings

NAMED_ENGINES = 3


async def check_pools(settings: Settings, config: Config) -> list[Finding]:
    pipe = Pipe(settings.redis_url)
    found: list[Finding] = []
    try:
        for model in config.models:
            view = await look_pool(pipe, model.pool)
            finding = ready(view) if view.ready_workers else unready(model, view, home=Home(settings.home))
            found += [finding, *await check_engines(model, view)]
    except BrokerError as error:
        found.append(Finding("fail", "pools", str(error)))
    finally:
        await pipe.close()
    return found


def ready(view: PoolView) -> Finding:
    states = states_of(view)
    level: Level = "warn" if states or view.dead else "ok"
    dead = f"; {view.dead} dead letters" if view.dead else ""
    engines = sorted({worker.engine for worker in view.ready_workers})
    shown = ", ".join(engines[:NAMED_ENGINES]) + (" …" if len(engines) > NAMED_ENGINES else "")
    workers = f"{len(view.ready_workers)} ready workers ({shown})"
    text = f"{workers}, {view.slots} slots, {sum(view.waiting)} jobs wait{dead}"
    return Finding(level, f"pool {view.pool}", f"{text}{'; ' + states if states else ''}")


def unready(model: ModelConfig, view: PoolView, *, home: Home) -> Finding:
    """A worker shows itself in Redis once its engine has answered, so one of `headway up` may run and not be there."""
    if states := states_of(view):
        text = f"no ready worker: {states}"
    elif pid := own_worker(home, model.pool):
        text = f"its worker (pid {pid}) waits for its engine: see {home.log(f'worker-{model.pool}')}"
    else:
        command = f"headway worker --pool {model.pool} --engine {model.engine}"
        text = f"no worker at all: start `headway up` or `{command}`"
    return Finding("fail", f"pool {model.pool}", text)


def states_of(view: PoolView) -> str:
    return ", ".join(f"{w.worker_id} is {w.state}" for w in view.workers if w.state != "ready")


def own_worker(home: Home, pool: str) -> int | None:
    """The pid of the worker that `headway up` runs for the pool."""
    for part in home.read_up().get("parts", []):
        identity = Identity.load(part)
        if part.get("name") == f"worker-{pool}" and identity and identity.find():
            return identity.pid
    return None


async def check_engines(model: ModelConfig, view: PoolView) -> list[Finding]:
    """The address in headway.yaml, and those of further workers."""
    named = {} if model.embedded else {model.engine: "`engine` in headway.yaml"}
    urls = {worker.engine_url: f"worker {worker.worker_id}" for worker in view.workers if worker.engine_url}
    urls |= named
    there = await asyncio.gather(*(answers(url) for url in urls))
    return [
        Finding(
            "warn" if view.ready_workers else "fail",
            f"pool {model.pool}",
            f"its engine at {url} does not answer ({whose}): start it, or correct the address",
        )
        for (url, whose), answered in zip(urls.items(), there, strict=True)
        if not answered
    ]
