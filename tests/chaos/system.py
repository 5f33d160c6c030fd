"""A whole Headway in a folder of its own: the parts of `headway up`, kept by its supervisor, with proxies where a network would be.

Two API processes, three engine workers with a simulated engine each (two of the pool small, one of large), Celery, RQ, and Redis.
A TCP proxy is in front of Redis and of each engine. One more engine is sick: a proxy may be pointed at it.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import redis.asyncio

from api.cli.home import Home
from api.cli.listener import listen, url_of
from api.cli.parts import Part, api_part, celery_part, python, redis_part, rq_part
from api.cli.probes import redis_answers, url_answers, worker_is_ready
from api.cli.redis_server import RedisServer, find_binary, free_port
from api.cli.supervisor import Probe, Supervisor
from broker.config import load_config
from broker.connection import Pipe
from broker.settings import Settings, child_environment, load_settings
from tests.conditions import wait_until
from tests.tcp_proxy import TcpProxy
from workers.engines.sim.asks import Model
from workers.engines.sim.scheduler import Limits

POOLS = {"small-0": "small", "small-1": "small", "large-0": "large"}
SEQUENCES, LENGTH, OUTPUT_TOKENS = 8, 4096, 12
MODEL = Model("simulated", Limits(1 << 20, max_model_len=LENGTH), OUTPUT_TOKENS)
SIM = [
    *("--model", MODEL.name, "--speed", "0.6", "--output-tokens", str(OUTPUT_TOKENS)),
    *("--max-model-len", str(LENGTH), "--max-num-seqs", str(SEQUENCES)),
]
SICK = [
    *("--error-rate", "0.3", "--garbage-rate", "0.2", "--busy-rate", "0.1", "--hang-rate", "0.1"),
    *("--slow-factor", "4", "--wrong-usage"),
]
CONFIG = "models: [{pool: small}, {pool: large, fallback: small}]\n"
# Seconds that are a production's minutes, so that eleven minutes are enough to see the end of each
TUNED = {
    "lease_s": 3.0, "health_s": 2.0, "redis_timeout_s": 3.0, "ping_s": 2.0, "drain_s": 5.0, "breaker_open_s": 2.0,
    "engine_first_byte_s": 8.0, "engine_between_bytes_s": 4.0, "engine_answer_s": 8.0, "callbacks_to_private": True,
    "retry_cap_s": 5.0, "log_level": "info",
}  # fmt: skip
READY_S = 60.0


@dataclass(slots=True)
class System:
    """`proxies`: "redis" and the engines' names. `rss`: the most that each part was seen to have, bytes."""

    home: Home
    supervisor: Supervisor
    proxies: dict[str, TcpProxy]
    urls: dict[str, str]
    redis_url: str
    sick_port: int
    settings: Settings
    probes: dict[str, Probe] = field(default_factory=dict)
    rss: dict[str, int] = field(default_factory=dict)

    def pid(self, part: str) -> int:
        return self.supervisor.running[part].identity.pid

    def signal(self, part: str, number: int) -> None:
        """To all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid(part), number)

    async def ready(self, part: str) -> bool:
        return await self.probes[part](self.pid(part))

    def redis(self) -> Any:
        """Not through the proxy."""
        return redis.asyncio.Redis.from_url(self.redis_url, decode_responses=True)

    def look_at_memory(self) -> None:
        for name, running in self.supervisor.running.items():
            try:
                rss = psutil.Process(running.identity.pid).memory_info().rss
            except psutil.Error:
                continue
            self.rss[name] = max(rss, self.rss.get(name, 0))

    def asked(self) -> dict[str, str]:
        """The engines' logs: the answer's id -> the mark of the request."""
        logs = (path.read_bytes() for path in self.home.path.glob("engine-*.jsonl"))
        entries = (orjson.loads(line) for log in logs for line in log.splitlines())
        return {entry["id"]: entry["user"] for entry in entries}


@contextmanager
def _settings(folder: Path, *, redis_url: str) -> Iterator[Settings]:
    """As `headway up` would decide them; nothing of this process's own environment counts."""
    mine = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HEADWAY_")}
    config = folder / "headway.yaml"
    config.write_text(CONFIG)
    try:
        yield load_settings(home=folder, config=config, redis_url=redis_url, **TUNED)
    finally:
        os.environ.update(mine)


@asynccontextmanager
async def system(folder: Path, *, appendfsync: str) -> AsyncIterator[System]:
    """All parts are ready. At the end they are stopped in order."""
    async with AsyncExitStack() as stack:
        server = RedisServer(find_binary(), free_port(), folder / "redis", appendfsync)
        ports = {name: free_port() for name in (*POOLS, "sick")}
        targets = {name: ports[name] for name in POOLS} | {"redis": server.port}
        proxies = {
            name: await stack.enter_async_context(TcpProxy.before("127.0.0.1", port))
            for name, port in targets.items()
        }
        url = f"redis://127.0.0.1:{proxies['redis'].port}/0"
        settings = stack.enter_context(_settings(folder, redis_url=url))
        home = Home(folder)
        home.prepare()
        supervisor = Supervisor(home, report=lambda _: None, changed=lambda: None)
        supervisor.env = child_environment(settings)
        stack.push_async_callback(supervisor.stop)
        this = System(home, supervisor, proxies, {}, server.url, ports["sick"], settings)
        this.probes["redis"] = redis_answers(server.url)
        await _start(this, redis_part(server))
        for part in (*_engines(this, ports), *_workers(this, stack.push_async_callback)):
            await _start(this, part, wait=False)
        for number in range(2):
            listener = stack.enter_context(listen("127.0.0.1", 0))
            this.urls[f"api-{number}"] = url_of(listener, host="127.0.0.1")
            part = api_part(this.urls[f"api-{number}"], load_config(settings), listener=listener.fileno())
            this.probes[f"api-{number}"] = url_answers(f"{part.url}/healthz")
            await _start(this, replace(part, name=f"api-{number}"), wait=False)
        for part in (celery_part(settings), rq_part()):
            await _start(this, part, wait=False)
        for name, probe in this.probes.items():
            await supervisor.until(supervisor.running[name].part, probe, timeout_s=READY_S)
        supervisor.settle()
        yield this


async def _start(this: System, part: Part, *, wait: bool = True) -> None:
    this.supervisor.start(part)
    this.probes.setdefault(part.name, _runs)
    await wait_until(lambda: part.name in this.supervisor.running, what=f"{part.name} is started")
    if wait:
        await this.supervisor.until(part, this.probes[part.name], timeout_s=READY_S)


async def _runs(_: int) -> bool:
    return True


def _engines(this: System, ports: dict[str, int]) -> Iterator[Part]:
    """They are stopped last, with Redis."""
    for name, port in ports.items():
        log = this.home.path / f"engine-{name}.jsonl"
        argv = python("workers.engines.sim.main", "--port", str(port), "--request-log", str(log), *SIM)
        argv = (*argv, *SICK) if name == "sick" else argv
        this.probes[f"engine-{name}"] = url_answers(f"http://127.0.0.1:{port}/health")
        yield Part(name=f"engine-{name}", kind="redis", argv=argv)


def _workers(this: System, at_end: Any) -> Iterator[Part]:
    pipe = Pipe(this.redis_url)
    at_end(pipe.close)
    for name, pool in POOLS.items():
        engine = f"http://127.0.0.1:{this.proxies[name].port}"
        argv = python("workers.main", "--pool", pool, "--engine", engine, "--dialect", "vllm")
        this.probes[f"worker-{name}"] = worker_is_ready(pool, pipe=pipe)
        yield Part(name=f"worker-{name}", kind="worker", argv=argv, grace_s=this.settings.drain_s + 5.0)
