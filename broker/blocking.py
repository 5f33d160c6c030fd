"""Waiting for a pool's marker: BZPOPMIN on a connection of its own, at the server that has the pool."""

import asyncio
import contextlib

import redis.asyncio
from redis.exceptions import RedisError

from broker.locate import connect_node, locator

GRACE_S = 5.0  # a server that has not answered so long after the block hangs, or the network has swallowed it


class Blocking:
    """One waiter at a time."""

    def __init__(self, url: str) -> None:
        self._locator = locator(url)
        self._node = ""
        self._client: redis.asyncio.Redis | None = None

    async def pop(self, *keys: str, block_s: float) -> bool:
        """Whether one of the sets, all of one slot, had a member within `block_s`; it is taken. Raises RedisError, OSError, RedisAway.

        A cancelled wait drops its connection, or Redis could hand the member to nobody.
        """
        try:
            async with asyncio.timeout(block_s + GRACE_S):
                client = await self._find(keys[0])
                return await client.bzpopmin(list(keys), timeout=block_s) is not None
        except asyncio.CancelledError:
            await self._drop()
            raise
        except BaseException:
            self._locator.forget(self._node)  # a failover, maybe: the next wait looks where the master is
            await self._drop()
            raise

    async def close(self) -> None:
        await self._drop()

    async def _find(self, key: str) -> redis.asyncio.Redis:
        if self._client is None:
            self._node = await self._locator.find(key)
            self._client = connect_node(self._node, timeout_s=None)
        return self._client

    async def _drop(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            with contextlib.suppress(RedisError, OSError):
                await client.connection_pool.disconnect()
            await client.aclose()
