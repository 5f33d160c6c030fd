"""Keeps a process's estimator up to date, beside its work: models from disk, pasts and timing from Redis.

One each in the API's processes and in the one that feeds batches. Only pools that are being asked about cost anything: an
idle process asks nobody. One process at a time also learns a pool's timing from the outcomes that workers report, and
writes it for the others.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from broker import learning
from broker.config import Config
from broker.connection import Pipe
from broker.errors import ConfigError, QueueFull, RedisAway
from predictor.booster import ModelUnfit
from predictor.estimator import SimpleEstimator, Speed
from predictor.features import Reader
from predictor.learned import LearnedEstimator
from predictor.lessons import Lessons, read_lessons
from predictor.model_set import open_models
from predictor.model_store import ModelStore
from predictor.timing import speed_of
from predictor.tokens import load as load_tokenizer

log = logging.getLogger("headway.predictor")
LOOK_S = 1.0
TEACHER_S = 5.0
MOST = 200  # outcomes of a look, the newest; 20 of them take a millisecond or two
AT_ONCE = 20


def learned_estimator(config: Config) -> LearnedEstimator:
    """Without models yet: the simple forecasts serve until they are loaded."""
    speeds = {model.pool: speed_of(model) for model in config.models}

    def of_pool(pool: str) -> Speed:
        return speeds.get(pool) or speed_of(None)

    readers = {
        model.pool: Reader(load_tokenizer(model.tokenizer)) for model in config.models if model.tokenizer
    }
    return LearnedEstimator(simple=SimpleEstimator(speeds), speed_of=of_pool, readers=readers)


@dataclass(slots=True)
class Foresight:
    """`name`: of this process, for others. `generation` counts the models that were loaded."""

    pipe: Pipe
    estimator: LearnedEstimator
    store: ModelStore
    name: str
    generation: int = 0
    _mark: tuple[int, int] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except (RedisAway, QueueFull) as error:
                log.debug("nothing was learned: %s", error)
            except Exception:  # the loop's outermost guard: forecasts go on with what they have
                log.exception("keeping the forecasts up to date failed")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """One round. Raises RedisAway, QueueFull."""
        await self._reload()
        asked = self.estimator.habits.asked()
        for pool, keys in asked.items():
            self.estimator.habits.put(pool, await learning.read_pasts(self.pipe, pool, keys=keys))
        for pool in asked:
            await self._lessons(pool)

    async def _reload(self) -> None:
        """New models, if others serve now. What cannot be loaded leaves the old ones where they are."""
        mark = self.store.mark()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            version = self.store.serving()
            models = await asyncio.to_thread(open_models, self.store.folder(version))
        except (ConfigError, ModelUnfit) as error:
            kept = self.estimator.models.version if self.estimator.models else "the simple forecasts"
            log.warning("models were not loaded (still serving: %s): %s", kept, error)
            return
        self.estimator.models = models
        self.generation += 1
        log.info("forecasts by the models %s", models.version)

    async def _lessons(self, pool: str) -> None:
        found = read_lessons(await learning.read_timing(self.pipe, pool), speed=self.estimator.speed_of(pool))
        if await learning.is_teacher(self.pipe, pool, name=self.name, for_s=TEACHER_S):
            found = await self._teach(pool, found)
        self.estimator.timings[pool] = found.timing
        self.estimator.p90_shifts[pool] = found.p90_shift

    async def _teach(self, pool: str, lessons: Lessons) -> Lessons:
        entries = await learning.read_after(self.pipe, pool, after=lessons.after, limit=MOST)
        for number, entry in enumerate(entries, 1):
            lessons = lessons.learn(entry)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if entries:
            await learning.write_timing(self.pipe, pool, document=lessons.dump())
        return lessons

    async def lessons(self, pools: Iterable[str]) -> dict[str, Lessons]:
        """As they are in Redis now, of pools that have any. Raises RedisAway."""
        found = {}
        for pool in pools:
            document = await learning.read_timing(self.pipe, pool)
            if document is not None:
                found[pool] = read_lessons(document, speed=self.estimator.speed_of(pool))
        return found
