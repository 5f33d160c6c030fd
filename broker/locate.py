"""Finds the server that answers for a key, and finds it anew after a failover.

Every connection asks here before it is opened (`Locator.find`) and says here when it was lost (`Locator.forget`).
"""

import asyncio
import random
from typing import Any, Protocol

import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from broker import seek
from broker.errors import RedisAway
from broker.topology import ANY, Address, SlotMap, Topology, parse, slot_of

CONNECT_TIMEOUT_S = 2.0
ASK_S = 1.0  # one sentinel's or node's answer about the others
SHARDED_PUBSUB = (7, 0)


def connect_node(url: str, *, timeout_s: float | None = 5.0) -> redis.asyncio.Redis:
    """A client of one server that never repeats a command by itself: only the caller knows whether that is safe.

    `timeout_s` None is for blocking commands and subscriptions.
    """
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
        url,
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=0 if timeout_s is None else 30,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
    )
    return client


def bare_connection(url: str) -> AbstractConnection:
    """A connection to one server, not opened yet and known to no pool."""
    connection: AbstractConnection = connect_node(url, timeout_s=None).connection_pool.make_connection()  # type: ignore[no-untyped-call]
    return connection


async def ask_node(url: str, *commands: tuple[str, ...]) -> list[Any]:
    """Raw answers over a connection that is closed afterwards. Raises RedisError, OSError."""
    connection = bare_connection(url)
    try:
        async with asyncio.timeout(ASK_S):
            await connection.connect()  # type: ignore[no-untyped-call]
            answers = []
            for command in commands:
                await connection.send_command(*command, check_health=False)
                answers.append(await connection.read_response(disable_decoding=True))
            return answers
    finally:
        await connection.disconnect(nowait=True)


async def _ask_all(search: seek.Search[seek.T]) -> seek.T:
    """What is found. Raises RedisAway."""
    try:
        url, command = next(search)
        while True:
            try:
                [answer] = await ask_node(url, command)
            except seek.TROUBLE as error:
                url, command = search.throw(error)
            else:
                url, command = search.send(answer)
    except StopIteration as end:
        found: seek.T = end.value
        return found


class Locator(Protocol):
    """`sharded`: channels belong to slots, and scripts publish with SPUBLISH (ADR 0008). Known once `find` has answered."""

    topology: Topology
    sharded: bool

    async def find(self, key: str) -> str:
        """URL of the server that takes writes to `key`. Raises RedisAway."""

    async def masters(self) -> list[str]:
        """URLs of all servers that take writes, never none. Raises RedisAway."""

    def forget(self, node: str) -> None:
        """It does not answer, or not as a master."""


def locator(url: str) -> Locator:
    """Raises ConfigError."""
    topology = parse(url)
    if topology.kind == "cluster":
        return ClusterLocator(topology)
    return SentinelLocator(topology) if topology.kind == "sentinel" else FixedLocator(topology)


class FixedLocator:
    """One server, always at the same address."""

    sharded = False

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    async def find(self, key: str) -> str:  # noqa: ARG002 - one server has every key
        return self.topology.url

    async def masters(self) -> list[str]:
        return [self.topology.url]

    def forget(self, node: str) -> None:
        """There is no other."""


class SentinelLocator:
    """Asks the sentinels each time: connections are opened seldom, and after a failover the last answer is wrong."""

    sharded = False

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._hosts = list(topology.hosts)

    async def find(self, key: str) -> str:  # noqa: ARG002 - one server has every key
        found = await _ask_all(seek.master(self.topology, list(self._hosts)))
        self._hosts.remove(found.host)
        self._hosts.insert(0, found.host)  # who answered is asked first the next time
        return found.url

    async def masters(self) -> list[str]:
        return [await self.find("")]

    def forget(self, node: str) -> None:
        """Nothing is remembered."""


class ClusterLocator:
    """The slot map of a cluster. `known` answers at once, for whoever cannot wait; `refresh` asks the nodes."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.sharded = False
        self._decided = False
        self._slots = SlotMap()
        self._seeds: list[Address] = list(topology.hosts)
        self._asking: asyncio.Task[None] | None = None

    def known(self, slot: int) -> str | None:
        """The slot's master, or any for the slot ANY; None if it has to be looked up."""
        if not self._decided:
            return None
        return self._slots.first() if slot == ANY else self._slots.at(slot)

    def moved(self, slot: int, address: Address) -> str:
        """What a MOVED answer says. Returns the node's URL."""
        node = self.topology.node(address)
        self._slots.move(slot, node)
        return node

    def forget(self, node: str) -> None:
        self._slots.forget(node)

    async def find(self, key: str) -> str:
        slot = slot_of(key)
        if self.known(slot) is None:
            await self.refresh()
        node = self.known(slot)
        if node is None:
            raise RedisAway(f"no node of the cluster serves slot {slot} now")
        return node

    async def masters(self) -> list[str]:
        if not self._decided or not self._slots.first():
            await self.refresh()
        if nodes := self._slots.nodes():
            return nodes
        raise RedisAway("the cluster has no masters now")

    async def refresh(self) -> None:
        """Asks the nodes for the map; callers at the same time share one question. Raises RedisAway."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._refresh())
            self._asking.add_done_callback(_retrieve)
        await asyncio.shield(self._asking)

    async def _refresh(self) -> None:
        hosts = random.sample(self._seeds, len(self._seeds))
        found = await _ask_all(seek.cluster_map(self.topology, hosts))
        self._seeds = found.hosts
        await self._decide(found.slots)
        self._slots = found.slots

    async def _decide(self, slots: SlotMap) -> None:
        """Once: whoever changed later would talk past the others. All masters have to be new enough."""
        if self._decided:
            return
        try:
            asked = [ask_node(node, ("INFO", "server")) for node in slots.nodes()]
            versions = [_version(info) for [info] in await asyncio.gather(*asked)]
        except (RedisError, OSError, TimeoutError) as error:
            raise RedisAway(f"a master of the cluster does not answer ({error})") from None
        self.sharded, self._decided = min(versions) >= SHARDED_PUBSUB, True


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Whoever asked may have been cancelled meanwhile; an error that nobody fetches is warned about."""
    if not task.cancelled():
        task.exception()


def _version(info: bytes) -> tuple[int, ...]:
    line = next(line for line in info.decode().splitlines() if line.startswith("redis_version:"))
    return tuple(int(part) for part in line.partition(":")[2].split(".")[:2])
