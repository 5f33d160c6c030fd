"""A served route with a scripted worker of each of its pools."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson

from broker.config import Config, ModelConfig
from broker.heirs import Heirs
from broker.job import Lease
from broker.route_config import RouteConfig
from broker.scripts import Ending
from broker.settings import Settings
from predictor.estimator import SimpleEstimator
from tests.api.harness import ScriptedWorker, Served, serve

EASY = "Hi there, thanks!"
HARD = "Prove step by step that the integral of the derivative equals the total probability; calculate and explain why."


def config(**route: object) -> Config:
    models = (ModelConfig(pool="small"), ModelConfig(pool="large"))
    named = RouteConfig.model_validate({"name": "auto", "small": "small", "large": "large", **route})
    return Config(models=models, routes=(named,))


def ask(text: str = EASY, **fields: object) -> dict[str, object]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}


def turn(text: str) -> dict[str, object]:
    """The second turn of the conversation that `ask(text)` began."""
    first = [{"role": "user", "content": text}, {"role": "assistant", "content": "well"}]
    return {"model": "auto", "messages": [*first, {"role": "user", "content": "go on"}]}


async def submitted(served: Served, body: dict[str, object]) -> dict[str, str]:
    """The document of a job that nobody will run."""
    document: dict[str, str] = (await served.http.post("/v1/jobs", json=body)).json()
    await served.http.delete(f"/v1/jobs/{document['id']}")
    return document


@dataclass(slots=True)
class Route:
    """A served route and a scripted worker of each of its pools."""

    served: Served
    small: ScriptedWorker
    large: ScriptedWorker

    async def hand_on(self, lease: Lease, why: str = "empty_answer") -> None:
        """As the real worker does it."""
        heirs = Heirs(self.small.pipe, self.served.producer, forecast=SimpleEstimator().forecast)
        assert await heirs.submit(lease, orjson.loads(lease.body), in_time=True)
        await self.small.consumer.finish(lease, Ending(False, b"", 3, 2, heir=lease.heir, why=why))

    async def post(self, body: dict[str, object]) -> "asyncio.Task[object]":
        return asyncio.create_task(self.served.http.post("/v1/chat/completions", json=body))


@contextlib.asynccontextmanager
async def routed(settings: Settings, **named: object) -> AsyncIterator[Route]:
    """`named`: as `config` takes it. By default all goes to the small pool, whatever the model thinks of it."""
    named = {"target": {"share_large": 0.0}, **named}
    async with serve(settings, config=config(**named)) as served:
        small, large = [await ScriptedWorker.join(settings.redis_url, pool) for pool in ("small", "large")]
        yield Route(served, small, large)
        await small.close()
        await large.close()
