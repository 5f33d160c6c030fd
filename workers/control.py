"""Hears aborts: a job that was cancelled or has expired while it ran. What is missed here, the next heartbeat tells."""

import asyncio
import contextlib
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from broker.connection import connect
from broker.keys import PoolKeys

RECONNECT_S = 0.5


async def hear_aborts(url: str, pool: str, *, on_abort: Callable[[str, int], None]) -> None:
    """Calls `on_abort(job_id, token)` until cancelled; survives the loss of Redis."""
    client = connect(url, timeout_s=None)
    try:
        while True:
            with contextlib.suppress(RedisError, OSError):
                await _listen(client, pool, on_abort=on_abort)
            await asyncio.sleep(RECONNECT_S)
    finally:
        await client.aclose()


async def _listen(client: Redis, pool: str, *, on_abort: Callable[[str, int], None]) -> None:
    """One subscription, until it breaks."""
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(PoolKeys(pool).control)
        async for message in pubsub.listen():
            verb, job_id, token = message["data"].decode().split(" ")
            if verb == "abort":
                on_abort(job_id, int(token))
