"""How much of each class may wait, as `headway.yaml` says: for all pools, and for one model in place of that."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from broker.job import pool_of_queue
from broker.policy import QueueLimits


class ClassConfig(BaseModel):
    """One class. None: as many as all classes together may be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_queued: int | None = Field(default=None, strict=True, ge=1)
    max_queued_s: float | None = Field(default=None, strict=True, gt=0)  # predicted seconds


ClassName = Literal["P0", "P1", "P2", "P3"]
ClassConfigs = Mapping[ClassName, ClassConfig]
NAMES: tuple[ClassName, ...] = ("P0", "P1", "P2", "P3")
NO_LIMIT = ClassConfig()


def limits_of_pool(general: ClassConfigs, own: ClassConfigs, *, jobs: int, queues: int) -> QueueLimits:
    """Of one queue of a pool that has `queues`: its part of the pool's limits. `own`, where it is set, goes first."""
    counts, seconds = list[int | None](), list[float | None]()
    for name in NAMES:
        mine, others = own.get(name, NO_LIMIT), general.get(name, NO_LIMIT)
        count = others.max_queued if mine.max_queued is None else mine.max_queued
        run_s = others.max_queued_s if mine.max_queued_s is None else mine.max_queued_s
        counts.append(None if count is None else math.ceil(count / queues))
        seconds.append(None if run_s is None else run_s / queues)
    return QueueLimits(math.ceil(jobs / queues), tuple(counts), tuple(seconds))


def by_queue(of_pool: Callable[[str], QueueLimits]) -> Callable[[str], QueueLimits]:
    """The limits of a queue by its name, worked out once."""
    known: dict[str, QueueLimits] = {}

    def find(queue: str) -> QueueLimits:
        if queue not in known:
            known[queue] = of_pool(pool_of_queue(queue))
        return known[queue]

    return find
