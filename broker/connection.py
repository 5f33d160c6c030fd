"""`Pipe`, the one way to run scripts, over whatever a Redis URL stands for; and whether the servers are fit for a queue.

Which server, and which connection: `locate.py`, `link.py`, `nodes.py`. The forms of a URL: `topology.py`.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import redis.asyncio
from redis.exceptions import RedisError

from broker.durable import Durable
from broker.errors import RedisAway, RedisUnsuitable
from broker.link import Link, Waiting
from broker.locate import ClusterLocator, connect_node, locator
from broker.nodes import Nodes
from broker.script import Argument, Call

MIN_VERSION = (6, 2)
connect = connect_node  # of one server: `redis://`, `rediss://` or `unix://`


async def check_servers(url: str, *, timeout_s: float = 5.0) -> dict[str, Any]:
    """Facts about the (first) master, if all of them are fit to hold a queue. Raises RedisUnsuitable, RedisAway."""
    facts = []
    for node in await locator(url).masters():
        client = connect_node(node, timeout_s=timeout_s)
        try:
            facts.append(await check_server(client))
        finally:
            await client.aclose()
    return facts[0]


async def check_server(client: redis.asyncio.Redis) -> dict[str, Any]:
    """Server facts, if it is fit to hold a queue. Raises RedisUnsuitable, RedisAway."""
    try:
        info: dict[str, Any] = await client.info()
    except (RedisError, OSError) as error:
        raise RedisAway(
            f"Redis does not answer ({error}); is it running at the address in HEADWAY_REDIS_URL?"
        ) from None
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    if version < MIN_VERSION:
        raise RedisUnsuitable(f"Redis {info['redis_version']} is too old; Headway needs 6.2 or newer")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise RedisUnsuitable(
            f"Redis has maxmemory-policy {policy}, so it may throw accepted jobs away; "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
    return info


class _Way(Protocol):
    silent: bool

    def ask(self, waiting: Waiting) -> None: ...

    async def close(self) -> None: ...


class Pipe:
    """Pipelines commands of all tasks of one event loop, over one connection (to each node of a cluster).

    `run` and `command` raise RedisAway when the connection fails before the answer: the command may have been
    applied. Connects on first use and again after any failure. Answers older than `timeout_s` fail the connection.
    """

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        where = locator(url)
        self._way: _Way
        if isinstance(where, ClusterLocator):
            self._way = Nodes(where, timeout_s=timeout_s)
        else:
            self._way = Link(partial(where.find, ""), timeout_s=timeout_s)
        self._durable = Durable(where, timeout_s=timeout_s)
        self._closed = False

    async def run(self, call: Call) -> Any:
        """The script's answer. Raises RedisAway, MemoryFull."""
        return await self._ask(call, call.evalsha())

    async def command(self, *command: Argument) -> Any:
        """A plain Redis command's raw answer. Its key, if it has one, is the first argument."""
        return await self._ask(None, command)

    async def run_all(self, calls: Sequence[Call], *, durable: bool = False) -> list[Any]:
        """All answers in order, errors raised as by `run`; one round trip.

        `durable`: answers when what was written is on the server's disk, where the server can tell (docs/durability.md).
        """
        if durable and self._durable.possible and not (self._closed or self._way.silent):
            return await self._durable.run_all(calls)
        asked = [self._ask(call, call.evalsha()) for call in calls]
        return list(await asyncio.gather(*asked))

    def _ask(self, call: Call | None, command: tuple[Argument, ...]) -> "asyncio.Future[Any]":
        if self._closed:
            raise RedisAway("this connection to Redis was closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._way.ask(Waiting(call, command, future))
        return future

    async def close(self) -> None:
        """Fails what is unanswered. Idempotent."""
        self._closed = True
        await self._way.close()
        await self._durable.close()
