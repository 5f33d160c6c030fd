"""Fixtures of the API's tests; what they are made of is in `harness.py`."""

from collections.abc import AsyncIterator

import pytest

from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, serve


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, ping_s=0.05)


@pytest.fixture
async def served(settings: Settings) -> AsyncIterator[Served]:
    async with serve(settings) as running:
        yield running


@pytest.fixture
async def worker(redis_url: str) -> AsyncIterator[ScriptedWorker]:
    """A ready worker of the pool `small`."""
    joined = await ScriptedWorker.join(redis_url, "small")
    yield joined
    await joined.close()
