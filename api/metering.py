"""Limits at the door: what a request takes of its key's and its tenant's, the headers that say so, and its end.

A caller without limits passes by: nothing is asked of Redis, and nothing is noted at the job's end.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from api.errors import ApiError
from api.rendering import Headers
from broker import ends
from broker.connection import Pipe
from broker.ends import Ends, Who
from broker.errors import RedisAway
from broker.job import Submission
from broker.limits import GRACE_S, Level, Levels, Limits, RateLimited, Take, Used
from broker.tenants import Tenant

log = logging.getLogger("headway.limits")
LOOK_S = 0.5  # between looks at ends that no connection has waited for


@dataclass(slots=True)
class Meter:
    """Of one request. `settle` may be called again; only the first one counts."""

    limits: Limits
    asked: Take
    headers: Headers = field(default_factory=list)
    settled: bool = False

    async def settle(self) -> None:
        """After the job has ended, or was never queued. What cannot be settled now, is from its note or its lease."""
        if self.settled:
            return
        self.settled = True
        try:
            used = await self.limits.used(self.asked.job_id)
            if used is None:
                await self.limits.settle(self.asked, tokens=0)
            elif used.status.terminal:
                await self.limits.settle(self.asked, tokens=used.tokens)
        except RedisAway as error:
            log.debug("%s is settled later: %s", self.asked.job_id, error)


class Metering:
    """One per process. `is_open`: without Redis requests pass (HEADWAY_LIMITS_WITHOUT_REDIS)."""

    def __init__(self, pipe: Pipe, *, is_open: bool) -> None:
        self.limits = Limits(pipe)
        self._ends = Ends(pipe, Who.LIMITS)
        self._is_open = is_open

    async def take(self, job: Submission, tenant: Tenant) -> Meter | None:
        """None: nothing is limited. Raises ApiError (429), RedisAway, MemoryFull."""
        if not tenant.scopes:
            return None
        tokens = job.forecast.prompt_tokens + job.forecast.output_tokens
        asked = Take(tenant.name, tenant.scopes, job.job_id, tokens, job.deadline_s + job.hold_s + GRACE_S)
        try:
            levels = await self.limits.take(asked)
        except RateLimited as refused:
            raise _too_many(refused) from None
        except RedisAway:
            if not self._is_open:
                raise
            return Meter(self.limits, asked)
        return Meter(self.limits, asked, _headers(levels))

    async def settle_ends(self, queues: Callable[[], Iterable[str]], *, wanted: Callable[[], bool]) -> None:
        """For ever: jobs that ended with nobody there. `wanted`: whether anybody has limits."""
        some = True  # there may be some from before this process
        while True:
            await asyncio.sleep(LOOK_S)
            if not (some or wanted()):
                continue
            try:
                ids = await self._ends.look(queues())
                some = bool(ids)
                await asyncio.gather(*map(self._settle, ids))
                await self._ends.drop(ids)
            except RedisAway as error:
                log.debug("ends of limited jobs are looked at later: %s", error)

    async def _settle(self, job_id: str) -> None:
        used: Used | None = await self.limits.used(job_id)
        if used is not None:
            await self.limits.settle_ended(job_id, used)


def noted(job: Submission, tenant: Tenant) -> Submission:
    """Its end is noted, if it has limits."""
    return ends.noted(job, Who.LIMITS) if tenant.scopes else job


def _too_many(refused: RateLimited) -> ApiError:
    error = ApiError(429, str(refused), code="rate_limit_exceeded")
    error.kind = {"requests": "requests", "tokens": "tokens"}.get(refused.what, "rate_limit_error")
    error.headers.update({name.decode(): value.decode() for name, value in _headers(refused.levels)})
    return error.retry_after(refused.retry_after_s)


def _headers(levels: Levels) -> Headers:
    """By the names that OpenAI gives them."""
    found: Headers = []
    for kind, level in (("requests", levels.requests), ("tokens", levels.tokens)):
        if level is not None:
            found += _level(kind, level)
    return found


def _level(kind: str, level: Level) -> Headers:
    return [
        (f"x-ratelimit-limit-{kind}".encode(), b"%d" % level.limit),
        (f"x-ratelimit-remaining-{kind}".encode(), b"%d" % level.remaining),
        (f"x-ratelimit-reset-{kind}".encode(), span(level.reset_s).encode()),
    ]


def span(seconds: float) -> str:
    """As OpenAI writes it: 6m0s, 1.5s, 120ms."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:g}s"
