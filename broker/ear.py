"""One subscription that outlives its connection: to all channels of a pool in a cluster with sharded pub/sub, else to all.

What is published while nobody was connected is lost; the confirmation that comes with every new connection tells
`hear` from when on nothing is missed. Used by `stream.py` (answers) and `workers/control.py` (aborts).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from broker.errors import RedisAway
from broker.locate import Locator, bare_connection

RECONNECT_S = 0.2
CONNECT_S = 5.0
SILENT_S = 5.0  # after so long without a word the server is asked for one; after as long again the connection is dead


@dataclass(frozen=True, slots=True)
class Heard:
    """A message; or, without `data`, that the subscription to the channel has begun, perhaps again."""

    channel: str
    data: bytes | None


class Ear:
    """`key`: any name in the slot of the channels."""

    def __init__(self, locator: Locator, key: str, *, hear: Callable[[Heard], None]) -> None:
        self._locator = locator
        self._key = key
        self._hear = hear
        self._node = ""
        self._connection: AbstractConnection | None = None
        self._heard = True  # something, since the last look
        self._wanted: set[str] = set()
        self._sending: set[asyncio.Task[None]] = set()

    def want(self, channel: str) -> None:
        if channel not in self._wanted:
            self._wanted.add(channel)
            self._send("SUBSCRIBE", channel)

    def drop(self, channel: str) -> None:
        self._wanted.discard(channel)
        self._send("UNSUBSCRIBE", channel)

    async def open(self) -> None:
        """Connects, so that the caller learns whether it works. Raises RedisAway."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect()
        except (RedisError, OSError, TimeoutError) as error:
            await self._disconnect()
            raise RedisAway(f"cannot subscribe to answers: {error}") from None

    async def run(self) -> None:
        """Hears until cancelled; connects again, and to another server, when it has to."""
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                with contextlib.suppress(RedisError, OSError, RedisAway):
                    await self._listen()
                await self._disconnect()
                await asyncio.sleep(RECONNECT_S)
        finally:
            watching.cancel()

    async def _listen(self) -> None:
        """As long as one connection lasts."""
        if self._connection is None:
            await self.open()
        while self._connection is not None:
            self._dispatch(await self._connection.read_response(disable_decoding=True))
            self._heard = True

    async def _watch(self) -> None:
        """Of a network that drops packets a reader is told nothing: it would wait for ever."""
        asked: AbstractConnection | None = None
        while True:
            self._heard = False
            await asyncio.sleep(SILENT_S)
            connection = self._connection
            if self._heard or connection is None:
                asked = None
            elif asked is connection:
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)  # which ends the reading
            else:
                asked = connection
                self._send("PING")

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._disconnect()

    async def _connect(self) -> None:
        masters = (
            await self._locator.masters()
        )  # from here on `sharded` is known; else any node hears everything
        self._node = await self._locator.find(self._key) if self._locator.sharded else random.choice(masters)
        connection = bare_connection(self._node)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            self._connection = connection  # from here on, channels that are wanted later are sent by `want`
            if self._wanted:
                await connection.send_command(self._verb("SUBSCRIBE"), *self._wanted, check_health=False)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    def _send(self, command: str, *channels: str) -> None:
        """Without a connection there is nothing to do: the next one subscribes to what is wanted by then."""
        if self._connection is not None:
            task = asyncio.create_task(self._say(self._connection, command, *channels))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _say(self, connection: AbstractConnection, command: str, *channels: str) -> None:
        if (
            connection.is_connected
        ):  # else redis-py would connect here, beside `run`: one of the two would leak
            with contextlib.suppress(RedisError, OSError):
                await connection.send_command(self._verb(command), *channels, check_health=False)

    def _verb(self, command: str) -> str:
        return f"S{command}" if self._locator.sharded and command != "PING" else command

    def _dispatch(self, item: list[Any] | bytes) -> None:
        if isinstance(item, bytes) or len(item) != 3:  # the answer to PING
            return
        kind, channel, data = item
        name = channel.decode() if channel else ""
        if kind == b"sunsubscribe" and name in self._wanted:
            raise RedisError("the channel's slot has moved")  # Redis says so of its own accord
        if kind in (b"subscribe", b"ssubscribe"):
            self._hear(Heard(name, None))
        elif kind in (b"message", b"smessage"):
            self._hear(Heard(name, data))

    async def _disconnect(self) -> None:
        if self._node:
            self._locator.forget(self._node)
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)
