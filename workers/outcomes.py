"""Tells the predictor what became of jobs, as `sight.py` has seen them.

Features are read off a request when it has ended, here, so that a queued job carries none and no prompt is kept. Reports go
out once a second; when too many jobs end, or Redis is away, some are dropped: the predictor learns from the others.
"""

import asyncio
import logging
from dataclasses import replace

from broker import learning
from broker.connection import Pipe
from broker.errors import QueueFull, RedisAway
from broker.job import pool_of, queue_of
from broker.keys import PoolKeys
from broker.learning import Outcome
from broker.policy import MEMORY, Memory
from predictor.features import VERSION, Features, extract
from predictor.habits import past_key
from workers.engine import EMBEDDINGS, EngineCall, Final
from workers.sight import Seen

log = logging.getLogger("headway.outcomes")
REPORT_S = 1.0
MOST = 64  # reports of a second: reading features takes some 80 us each of the worker's loop


class Reporter:
    """`dropped` counts outcomes that were not reported."""

    def __init__(self, pipe: Pipe, *, memory: Memory = MEMORY) -> None:
        self._pipe = pipe
        self._memory = memory
        self._waiting: list[tuple[str, int, Outcome]] = []  # job ids, choices, and what became of one
        self.dropped = 0

    def saw(self, seen: Seen, outcome: str) -> None:
        if outcome != "succeeded" or seen.call is None or seen.final is None:
            return
        if len(self._waiting) >= MOST:
            self.dropped += 1
        elif (found := _outcome(seen, seen.call, final=seen.final)) is not None:
            self._waiting.append((seen.lease.job_id, *found))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self.flush()

    async def flush(self) -> None:
        """Everything that waits. Never raises."""
        waiting, self._waiting = self._waiting, []
        try:
            known = await asyncio.gather(*(self._foretold(job_id, n) for job_id, n, _ in waiting))
            pools: dict[str, list[Outcome]] = {}
            for (job_id, _, outcome), (p50, p90) in zip(waiting, known, strict=True):
                told = replace(outcome, forecast_tokens=p50, forecast_p90=p90)
                pools.setdefault(pool_of(job_id), []).append(told)
            for pool, outcomes in pools.items():
                await self._pipe.run(learning.report(pool, outcomes, memory=self._memory))
        except (RedisAway, QueueFull) as error:
            self.dropped += len(waiting)
            log.debug("%d outcomes were not reported: %s", len(waiting), error)

    async def _foretold(self, job_id: str, choices: int) -> tuple[int, int]:
        """P50 and P90 of one choice by the job's record, which is there for a while after its end; 0: not known."""
        key = PoolKeys(queue_of(job_id)).job(job_id)
        found = await self._pipe.command("HMGET", key, "otok", "need", "ptok")
        output, need, prompt = (int(value or 0) for value in found)
        return round(output / choices), max(0, round((need - prompt) / choices))


def _outcome(seen: Seen, call: EngineCall, *, final: Final) -> tuple[int, Outcome] | None:
    """How many choices, and what became of one. None where there is nothing to learn: no tokens were written, or nobody counted them."""
    usage = final.usage
    if usage is None or usage.recounted or call.endpoint == EMBEDDINGS or usage.completion_tokens <= 0:
        return None
    features = extract(call.body)
    return features.choices, Outcome(
        past_key=past_key(call.tenant, features.template),
        features=features.values,
        features_version=VERSION,
        prompt_type=str(features.prompt_type),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=_each(usage.completion_tokens, features),
        run_s=seen.ended - seen.began,
        forecast_s=seen.lease.run_s,
        first_s=None if seen.first is None else seen.first - seen.began,
        beside=seen.beside,
        ended=final.finish_reason or "",
    )


def _each(tokens: int, features: Features) -> int:
    """Of one choice: they are written side by side."""
    return max(1, round(tokens / features.choices))
