"""Waiting for a pool's marker: BZPOPMIN on a connection of its own, at the server that has the pool.

On a bare connection: redis-py's client costs as much of a job's way to an idle worker as Redis itself.
"""

import asyncio
import contextlib

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from broker.locate import bare_connection, locator

GRACE_S = 5.0  # a server that has not answered so long after the block hangs, or the network has swallowed it


class Blocking:
    """One waiter at a time."""

    def __init__(self, url: str) -> None:
        self._locator = locator(url)
        self._node = ""
        self._connection: AbstractConnection | None = None

    async def pop(self, *keys: str, block_s: float) -> str | None:
        """The first of the sets, all on one server, that had a member within `block_s`; it is taken.

        Raises RedisError, OSError, RedisAway.

        A cancelled wait drops its connection, or Redis could hand the member to nobody.
        """
        try:
            async with asyncio.timeout(block_s + GRACE_S):
                connection = await self._find(keys[0])
                command = hiredis.pack_command(("BZPOPMIN", *keys, block_s))  # type: ignore[arg-type] # its stub takes one word
                await connection.send_packed_command(command, check_health=False)
                answer = await connection.read_response(disable_decoding=True)
                return None if answer is None else str(answer[0].decode())
        except asyncio.CancelledError:
            await self._drop()
            raise
        except BaseException:
            self._locator.forget(self._node)  # a failover, maybe: the next wait looks where the master is
            await self._drop()
            raise

    async def close(self) -> None:
        await self._drop()

    async def _find(self, key: str) -> AbstractConnection:
        if self._connection is None:
            self._node = await self._locator.find(key)
            self._connection = bare_connection(self._node)
            await self._connection.connect()  # type: ignore[no-untyped-call]
        return self._connection

    async def _drop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)
