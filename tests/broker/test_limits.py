"""Limits of keys and tenants: exact, whoever asks; put right at the end; nothing leaks."""

import asyncio
import re
from pathlib import Path

import pytest
import redis

from broker import limits
from broker.connection import Pipe
from broker.ends import short_id
from broker.job import Status, new_job_id
from broker.keys import LimitKeys
from broker.limits import Limits, Quota, RateLimited, Scope, Take, Used

FOLDER = Path(limits.__file__).parent / "lua" / "limits"
MINUTE_MS = 60_000
WIDE = Quota(requests_per_minute=1000, tokens_per_minute=100_000, concurrent=1000)


def asking(quota: Quota, *, tokens: int = 10, own: Quota = WIDE, job_id: str = "") -> Take:
    """By a key with its `own` quota, of a tenant with `quota`."""
    scopes = (Scope("tenant", quota), Scope("key_1", own))
    return Take("acme", scopes, job_id or new_job_id("small"), tokens, 30.0)


@pytest.fixture
def meter(pipe: Pipe) -> Limits:
    return Limits(pipe)


def let_time_pass(url: str, ms: int, scope: str = "tenant") -> None:
    """Moves what was taken into the past."""
    name, slots = LimitKeys("acme").window(scope), ms // 250
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found = client.hgetall(name)
        moved: dict[str, str] = {}
        for key, value in found.items():
            match = re.fullmatch(r"([rt])(\d+)", key)
            moved[f"{match[1]}{int(match[2]) - slots}" if match else key] = value
        for key in ("at", "rl", "tl"):
            moved[key] = str(int(found[key]) - slots)
        client.delete(name)
        client.hset(name, mapping=moved)
        client.expire(name, 60)


@pytest.mark.parametrize(
    ("quota", "what"),
    [
        (Quota(requests_per_minute=5), "requests"),
        (Quota(tokens_per_minute=50), "tokens"),
        (Quota(concurrent=5), "open"),
    ],
)
async def test_each_limit_lets_in_exactly_as_many_as_it_says(
    redis_url: str, quota: Quota, *, what: str
) -> None:
    """Also when several processes ask at once."""
    pipes = [Pipe(redis_url) for _ in range(3)]
    asked = [Limits(pipe).take(asking(quota)) for pipe in pipes for _ in range(10)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, RateLimited)]
    assert len(answers) - len(refused) == 5
    assert {error.what for error in refused} == {what}
    assert all(0 < error.retry_after_s <= 61 for error in refused)
    for pipe in pipes:
        await pipe.close()


async def test_narrower_of_key_and_tenant_refuses_and_names_itself(meter: Limits) -> None:
    two = Quota(requests_per_minute=2)
    for _ in range(2):
        await meter.take(asking(WIDE, own=two))
    with pytest.raises(RateLimited, match="this API key is 2 requests a minute"):
        await meter.take(asking(WIDE, own=two))
    levels = await meter.take(asking(Quota(requests_per_minute=3), own=WIDE))
    assert levels.requests is not None
    assert (levels.requests.limit, levels.requests.remaining) == (3, 0)


async def test_refusal_takes_nothing(meter: Limits) -> None:
    quota = Quota(requests_per_minute=10, tokens_per_minute=100)
    await meter.take(asking(quota, tokens=90))
    for _ in range(5):
        with pytest.raises(RateLimited):
            await meter.take(asking(quota, tokens=20))
    levels = await meter.take(asking(quota, tokens=10))
    assert levels.requests is not None
    assert levels.tokens is not None
    assert (levels.requests.remaining, levels.tokens.remaining) == (8, 0)


async def test_what_was_taken_comes_back_a_minute_later_and_not_before(meter: Limits, redis_url: str) -> None:
    quota = Quota(requests_per_minute=1)
    await meter.take(asking(quota))
    let_time_pass(redis_url, MINUTE_MS - 1000)
    with pytest.raises(RateLimited) as refused:
        await meter.take(asking(quota))
    assert refused.value.retry_after_s <= 1.25
    let_time_pass(redis_url, 1250)
    assert (await meter.take(asking(quota))).requests is not None


async def test_tokens_are_put_right_by_what_was_used(meter: Limits) -> None:
    quota = Quota(tokens_per_minute=1000)

    async def left_after(tokens: int, *, used: int | None) -> int:
        asked = asking(quota, tokens=tokens)
        await meter.take(asked)
        assert await meter.settle(asked, tokens=used)
        assert not await meter.settle(asked, tokens=used), "a second settlement counts"
        levels = await meter.take(asking(quota, tokens=0))
        assert levels.tokens is not None
        return levels.tokens.remaining

    assert await left_after(600, used=100) == 900
    assert await left_after(100, used=300) == 600
    assert await left_after(100, used=None) == 500
    assert await left_after(100, used=0) == 500


async def test_more_than_was_forecast_is_charged_also_when_the_minute_is_over(
    meter: Limits, redis_url: str
) -> None:
    quota, asked = Quota(tokens_per_minute=1000), asking(Quota(tokens_per_minute=1000), tokens=100)
    await meter.take(asked)
    let_time_pass(redis_url, MINUTE_MS + 1000)
    await meter.settle(asked, tokens=400)
    levels = await meter.take(asking(quota, tokens=0))
    assert levels.tokens is not None
    assert levels.tokens.remaining == 700


async def test_request_larger_than_the_limit_is_let_in_when_nothing_is_taken(meter: Limits) -> None:
    quota = Quota(tokens_per_minute=100)
    await meter.take(asking(quota, tokens=5000))
    with pytest.raises(RateLimited):
        await meter.take(asking(quota, tokens=1))


async def test_same_job_takes_once(meter: Limits) -> None:
    asked = asking(Quota(requests_per_minute=5, concurrent=1))
    for _ in range(3):
        levels = await meter.take(asked)
        assert levels.requests is not None
        assert levels.requests.remaining == 4


async def test_place_of_a_job_that_nobody_settles_is_free_when_its_lease_ends(
    meter: Limits, redis_url: str
) -> None:
    quota = Quota(concurrent=1)
    asked = asking(quota)
    await meter.take(asked)
    with pytest.raises(RateLimited):
        await meter.take(asking(quota))
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(LimitKeys("acme").open("tenant"), {short_id(asked.job_id): 1})
    await meter.take(asking(quota))


async def test_end_that_only_the_job_tells_of_is_settled(meter: Limits) -> None:
    quota = Quota(tokens_per_minute=100, concurrent=1)
    asked = asking(quota, tokens=60)
    await meter.take(asked)
    successor = new_job_id("large")
    assert not await meter.settle_ended(successor, Used(Status.SUCCEEDED, "acme", 20))
    used = Used(Status.SUCCEEDED, "acme", 20, short_id(asked.job_id))
    assert await meter.settle_ended(successor, used)
    assert not await meter.settle_ended(asked.job_id, used)
    levels = await meter.take(asking(quota, tokens=0))
    assert levels.tokens is not None
    assert levels.tokens.remaining == 80


@pytest.mark.parametrize("name", ["meter", "_window"])
def test_script_is_short_and_bounded(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    assert len(text.splitlines()) <= 80
    assert not re.search(r"\b(while|repeat)\b|'(KEYS|SCAN|HGETALL|SMEMBERS|TIME)'", text)


def test_all_keys_of_a_tenant_are_in_one_slot() -> None:
    keys = limits.take(asking(WIDE)).keys
    assert len(keys) == 5
    assert all(key.startswith("hw:limit:{acme}:") for key in keys)
