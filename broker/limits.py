"""How much a key and a tenant may ask for: requests and tokens a minute, jobs at a time. Kept in Redis, by one script.

A bucket whose tokens come back a minute after they were taken: a caller may take all at once, and no minute sees more than
the limit, whichever API processes it asks (docs/limits.md). Time is Redis' own. A job takes its forecast when it is let in,
and is put right by what it really used. What it holds open has a lease, so that nothing leaks when a process dies.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from broker.connection import Pipe
from broker.ends import noted_as, short_id
from broker.errors import QueueFull
from broker.job import Status, queue_of
from broker.keys import LimitKeys, PoolKeys
from broker.script import Argument, Call, Script, lua, ms

GRACE_S = 60.0  # a lease is that much longer than its job may live
NO_LIMIT = -1
USED = (
    "status",
    "tenant",
    "claimed",
    "stream",
    "seq",
    "ptok",
    "prompt_used",
    "output_used",
    "heir",
    "notify",
)


class Quota(BaseModel):
    """None: not limited. Tokens: prompt and answer together. `concurrent`: accepted jobs that have not ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: int | None = Field(default=None, strict=True, ge=1, le=100_000_000)
    tokens_per_minute: int | None = Field(default=None, strict=True, ge=1, le=10_000_000_000)
    concurrent: int | None = Field(default=None, strict=True, ge=1, le=1_000_000)

    @property
    def is_set(self) -> bool:
        return (self.requests_per_minute, self.tokens_per_minute, self.concurrent) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Scope:
    """Who shares a quota: `name` is `tenant`, or a key's id."""

    name: str
    quota: Quota


@dataclass(frozen=True, slots=True)
class Level:
    """Of one kind of limit: the most, what is left, and seconds until all is back."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Levels:
    """After a job was let in, of the scope that has least left. None: not limited."""

    requests: Level | None = None
    tokens: Level | None = None


class RateLimited(QueueFull):
    """`what`: requests, tokens or open."""

    def __init__(self, message: str, *, retry_after_s: float, what: str, levels: Levels) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.what = what
        self.levels = levels


@dataclass(frozen=True, slots=True)
class Take:
    """What a job asks for. `tokens`: as forecast; `lease_s`: it has ended by then in any case."""

    tenant: str
    scopes: tuple[Scope, ...]
    job_id: str
    tokens: int
    lease_s: float


class Limits:
    """`pipe` is shared with whoever else lives in this process."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def take(self, asked: Take) -> Levels:
        """A repeat for the same job takes nothing. Raises RateLimited, RedisAway, MemoryFull."""
        refused_by, what, wait_ms, *used = await self._pipe.run(take(asked))
        levels = _levels(asked.scopes, [int(n) for n in used])
        if refused_by:
            raise _refusal(
                asked.scopes[int(refused_by) - 1], what.decode(), wait_s=wait_ms / 1000, levels=levels
            )
        return levels

    async def settle(self, asked: Take, *, tokens: int | None) -> bool:
        """Frees the job's place. `tokens`: what it used; None: as forecast. False: it was settled before. Raises RedisAway."""
        return bool(await self._pipe.run(settle(asked, tokens=tokens)))

    async def settle_ended(self, job_id: str, used: "Used") -> bool:
        """The same, where only the job is known. Raises RedisAway."""
        name = used.noted_as or short_id(job_id)
        reservation = LimitKeys(used.tenant).reservation(name)
        kept = await self._pipe.command("GET", reservation)
        if kept is None:
            return False
        scopes = kept.decode().split(" ")[2].split(",")
        return bool(await self._pipe.run(_settle(used.tenant, scopes, job_id=name, tokens=used.tokens)))

    async def used(self, job_id: str) -> "Used | None":
        """What a job has used so far. None if it is not known, or no longer. Raises RedisAway."""
        found = await self._pipe.command("HMGET", PoolKeys(queue_of(job_id)).job(job_id), *USED)
        texts = {name: value.decode() for name, value in zip(USED, found, strict=True) if value is not None}
        if "status" not in texts:
            return None
        used = _used(texts)
        if used.status is Status.ESCALATED and (after := await self.used(texts["heir"])) is not None:
            return Used(after.status, after.tenant, _sum(used.tokens, after.tokens))
        return used


@dataclass(frozen=True, slots=True)
class Used:
    """`tokens` None: nobody has counted."""

    status: Status
    tenant: str
    tokens: int | None
    noted_as: str = ""  # the job that took the limits, if this one has its place


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _used(job: dict[str, str]) -> Used:
    """By the engine's count; of an answer that was cut by the payloads that had come, which are a token or more each."""
    tokens: int | None = None
    if "output_used" in job:
        tokens = int(job.get("prompt_used", 0)) + int(job["output_used"])
    elif "claimed" not in job or job["status"] == Status.ESCALATED:  # or handed on before it ran
        tokens = 0
    elif "stream" in job:
        tokens = int(job.get("ptok", 0)) + int(job.get("seq", 0))
    return Used(Status(job["status"]), job["tenant"], tokens, noted_as(job.get("notify", "")))


@cache
def meter() -> Script:
    source = (lua("_now") + lua("limits/_window") + lua("limits/meter")).encode()
    return Script("limits/meter", source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def take(asked: Take) -> Call:
    most = [each.quota.tokens_per_minute for each in asked.scopes if each.quota.tokens_per_minute is not None]
    args: list[Argument] = [
        "take",
        short_id(asked.job_id),
        min([max(0, asked.tokens), *most]),
        ms(asked.lease_s),
    ]
    args.append(",".join(scope.name for scope in asked.scopes))
    for scope in asked.scopes:
        quota = scope.quota
        limits = (quota.requests_per_minute, quota.tokens_per_minute, quota.concurrent)
        args += [NO_LIMIT if limit is None else limit for limit in limits]
    scopes = [scope.name for scope in asked.scopes]
    return Call(meter(), _keys(asked.tenant, scopes, job_id=asked.job_id), tuple(args))


def settle(asked: Take, *, tokens: int | None) -> Call:
    return _settle(asked.tenant, [scope.name for scope in asked.scopes], job_id=asked.job_id, tokens=tokens)


def _settle(tenant: str, scopes: Sequence[str], *, job_id: str, tokens: int | None) -> Call:
    args = ("settle", short_id(job_id), -1 if tokens is None else tokens, 0, "")
    return Call(meter(), _keys(tenant, scopes, job_id=job_id), args)


def _keys(tenant: str, scopes: Sequence[str], *, job_id: str) -> tuple[str, ...]:
    keys = LimitKeys(tenant)
    pairs = [name for scope in scopes for name in (keys.window(scope), keys.open(scope))]
    return (keys.reservation(short_id(job_id)), *pairs)


def _levels(scopes: Sequence[Scope], used: Sequence[int]) -> Levels:
    """`used`: of each scope requests, ms until they are back, tokens, ms until they are back."""
    found: dict[str, Level] = {}
    for at, scope in enumerate(scopes):
        requests, requests_ms, tokens, tokens_ms = used[4 * at : 4 * at + 4]
        for kind, limit, taken, reset_ms in (
            ("requests", scope.quota.requests_per_minute, requests, requests_ms),
            ("tokens", scope.quota.tokens_per_minute, tokens, tokens_ms),
        ):
            if limit is not None:
                level = Level(limit, max(0, limit - taken), reset_ms / 1000)
                found[kind] = min(found.get(kind, level), level, key=lambda each: each.remaining)
    return Levels(**found)


def _refusal(scope: Scope, what: str, *, wait_s: float, levels: Levels) -> RateLimited:
    whose = "this tenant" if scope.name == "tenant" else "this API key"
    quota = scope.quota
    most = {
        "requests": f"{quota.requests_per_minute} requests a minute",
        "tokens": f"{quota.tokens_per_minute} tokens a minute",
        "open": f"{quota.concurrent} jobs at a time",
    }[what]
    return RateLimited(f"the limit of {whose} is {most}", retry_after_s=wait_s, what=what, levels=levels)
