"""Clients that leave at random moments take their jobs with them: slots are free again, nothing is left behind."""

import asyncio
import contextlib
import random

import httpx

from tests.conditions import wait_until_sync
from tests.e2e.stack import Stack

CLIENTS = 50
SEED = 7


async def leave(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Sends a long request and goes, before or after the first token, streaming or not."""
    body = {
        "model": rng.choice(["small", "large"]),
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": rng.random() < 0.5,
    }
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(read(client, body), rng.uniform(0.02, 3.0))


async def read(client: httpx.AsyncClient, body: dict[str, object]) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def all_leave(url: str) -> None:
    rng = random.Random(SEED)
    async with httpx.AsyncClient(
        base_url=url, timeout=60, limits=httpx.Limits(max_connections=CLIENTS)
    ) as client:
        await asyncio.gather(*(leave(client, rng) for _ in range(CLIENTS)))


def test_fifty_clients_that_leave_free_all_slots_within_two_seconds(stack: Stack) -> None:
    asyncio.run(all_leave(stack.url))
    wait_until_sync(lambda: stack.busy_slots() == 0, timeout_s=2, what="all slots are free")
    with stack.http() as client:
        pools = client.get("/v1/fleet").json()["pools"]
        assert sum(sum(pool["waiting"].values()) for pool in pools) == 0
        answer = client.post(
            "/v1/chat/completions",
            json={"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
        )
        assert answer.status_code == 200
    assert stack.leaked_keys() == []
