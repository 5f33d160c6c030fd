"""The simulated engine on a port of its own, a hundred times as fast as the plain machine that it is."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from tests.workers.engines.sim.hardware import Linear
from workers.engines.sim.asks import Model
from workers.engines.sim.failures import Failures
from workers.engines.sim.realtime import Runner
from workers.engines.sim.replica import Replica
from workers.engines.sim.scheduler import Limits
from workers.engines.sim.server import Server

SPEED = 100.0


@dataclass
class Served:
    """`left`: the codes with which the process would have ended."""

    url: str
    replica: Replica
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    left: list[int] = field(default_factory=list)

    @property
    def sdk(self) -> Any:
        """Untyped: its request types want every message spelt out as their own classes."""
        return self.openai

    async def metrics(self) -> dict[str, float]:
        """Samples by name with labels, without those of the model and engine."""
        page = (await self.http.get("/metrics")).text
        lines = [line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#")]
        return {name.replace('engine="0",model_name="m"', ""): float(value) for name, _, value in lines}


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`await start(failures=…, speed=…, **limits)`."""
    servers: list[TestServer] = []
    started: list[Served] = []

    async def go(*, failures: Failures | None = None, speed: float = SPEED, **changes: Any) -> Served:
        limits = Limits(**({"kv_tokens": 4096, "max_model_len": 1024, "max_num_seqs": 8} | changes))
        replica = Replica(limits, Linear())
        failures = failures or Failures()
        left: list[int] = []
        runner = Runner(replica, speed=speed, slow_factor=failures.slow_factor)
        server = Server(runner, Model("m", limits, 20), failures=failures, leave=left.append)
        servers.append(TestServer(server.app()))
        await servers[-1].start_server()
        url = str(servers[-1].make_url("")).rstrip("/")
        http = httpx.AsyncClient(base_url=url, timeout=20)
        sdk = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20)
        started.append(Served(url, replica, http, sdk, left))
        return started[-1]

    yield go
    for served in started:
        await served.http.aclose()
        await served.openai.close()
    for server in servers:
        await server.close()
