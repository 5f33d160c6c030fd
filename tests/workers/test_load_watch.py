"""What was seen of an engine's load, and for how long it counts."""

import asyncio
import time

from tests.conditions import wait_until
from tests.workers.scripted import ScriptedEngine
from workers.engine import EngineLoad, EngineUnavailable
from workers.load_watch import STALE_LOOKS, LoadWatch


class Loaded(ScriptedEngine):
    """Says that it runs as many as it was asked."""

    looks = 0
    away = False

    async def load(self) -> EngineLoad:
        if self.away:
            raise EngineUnavailable("gone")
        self.looks += 1
        return EngineLoad(running=self.looks)


async def test_a_load_that_was_never_seen_is_unknown() -> None:
    assert LoadWatch(Loaded(), every_s=1.0).seen(now=time.monotonic()) == EngineLoad()


async def test_a_load_counts_until_it_is_stale() -> None:
    engine = Loaded()
    watch = LoadWatch(engine, every_s=1.0)
    await watch.look()
    engine.away = True
    await watch.look()
    now = time.monotonic()
    assert watch.seen(now=now) == EngineLoad(running=1)
    assert watch.seen(now=now + STALE_LOOKS + 1) == EngineLoad(), "not busy for ever, and not free"


async def test_it_looks_again_and_again() -> None:
    engine = Loaded()
    watching = asyncio.create_task(LoadWatch(engine, every_s=0.001).run())
    await wait_until(lambda: engine.looks > 2)
    watching.cancel()
