"""Fixtures of the batch tests; what they are made of is in `rig.py`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.settings import Settings
from tests.workers.batch.rig import Bench, Engine, bench, running


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    """Small slices, and a lease that is soon over."""
    return Settings(
        redis_url=redis_url, home=tmp_path, slice_lines=10, batch_window=4, celery_concurrency=2, lease_s=2.0
    )


@pytest.fixture
async def table(settings: Settings) -> AsyncIterator[Bench]:
    """Does units in this event loop."""
    async with bench(settings) as made:
        yield made


@pytest.fixture
async def engine(redis_url: str) -> AsyncIterator[Engine]:
    """Answers at once."""
    async with running(Engine(redis_url)) as made:
        yield made


@pytest.fixture
async def held_engine(redis_url: str) -> AsyncIterator[Engine]:
    """Claims nothing until `hold` is set."""
    async with running(Engine(redis_url), held=True) as made:
        yield made
