"""Sends each command to the node of a Redis Cluster that owns its key, over one pipelined link per node.

A command goes out at once while its slot's node is known. Otherwise, and after an answer that says "not here" (MOVED, ASK,
TRYAGAIN, CLUSTERDOWN: nothing was executed), it is sent again until `timeout_s` has passed. Called by `connection.Pipe`.
"""

import asyncio
from functools import partial

from redis.exceptions import AskError, MovedError, ResponseError

from broker.errors import RedisAway
from broker.link import Link, Waiting
from broker.locate import ClusterLocator
from broker.topology import ANY, slot_of

AGAIN_S = 0.05  # between tries while a slot moves, or while the cluster fails over
KEYLESS = frozenset(("PING", "ECHO", "TIME", "INFO", "CLIENT", "CONFIG", "SCRIPT", "DBSIZE", "CLUSTER"))


class Nodes:
    """The links of one event loop to all nodes. A keyless command goes to any."""

    silent = False  # each node is for itself

    def __init__(self, locator: ClusterLocator, *, timeout_s: float) -> None:
        self._locator = locator
        self._timeout_s = timeout_s
        self._links: dict[str, Link] = {}
        self._homeless: list[Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def ask(self, waiting: Waiting) -> None:
        """Raises nothing: trouble goes to the waiting future."""
        waiting.slot = _slot(waiting)
        waiting.until = asyncio.get_running_loop().time() + self._timeout_s
        self._route(waiting)

    def _route(self, waiting: Waiting) -> None:
        if self._closed:
            waiting.fail(RedisAway("the connection to Redis was closed"))
        elif (node := self._locator.known(waiting.slot)) is not None:
            self._send(waiting, node)
        else:
            self._homeless.append(waiting)
            if len(self._homeless) == 1:
                task = asyncio.create_task(self._find_homes())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _send(self, waiting: Waiting, node: str) -> None:
        if waiting.call is not None and self._locator.sharded:
            waiting.call = waiting.call.sharded()
            waiting.command = waiting.call.evalsha()
        self._link(node).ask(waiting)

    def _link(self, node: str) -> Link:
        if node not in self._links:
            self._links[node] = Link(
                partial(_same, node),
                timeout_s=self._timeout_s,
                on_elsewhere=self._elsewhere,
                on_lost=self._locator.forget,
            )
        return self._links[node]

    async def _find_homes(self) -> None:
        try:
            await self._locator.refresh()
        except RedisAway as error:
            waiting, self._homeless = self._homeless, []
            for item in waiting:
                item.fail(RedisAway(str(error)))
            return
        waiting, self._homeless = self._homeless, []
        for item in waiting:
            if self._locator.known(item.slot) is None:
                self._later(item, _nobody(item.slot))
            else:
                self._route(item)

    def _elsewhere(self, waiting: Waiting, error: ResponseError) -> None:
        if isinstance(error, MovedError):
            # A whole new map too: after a failover the other slots of the node have moved with this one
            self._locator.forget(self._locator.known(waiting.slot) or "")
            node = self._locator.moved(waiting.slot, (error.host, error.port))
            if asyncio.get_running_loop().time() < waiting.until:
                self._send(waiting, node)
            else:
                waiting.fail(RedisAway(f"the cluster's nodes disagree about slot {waiting.slot}"))
        elif isinstance(error, AskError):
            link = self._link(self._locator.topology.node((error.host, error.port)))
            link.ask(Waiting(None, ("ASKING",), asyncio.get_running_loop().create_future()))
            if waiting.call is not None:  # ASKING holds for one command: NOSCRIPT would use it up
                waiting.command = waiting.call.eval()
            link.ask(waiting)
        else:
            self._later(waiting, f"Redis cannot take commands now ({error})")

    def _later(self, waiting: Waiting, trouble: str) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < waiting.until:
            loop.call_later(AGAIN_S, self._route, waiting)
        else:
            self._locator.forget(self._locator.known(waiting.slot) or "")
            waiting.fail(RedisAway(trouble))

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in self._homeless:
            item.fail(RedisAway("the connection to Redis was closed"))
        await asyncio.gather(*(link.close() for link in self._links.values()))


def _nobody(slot: int) -> str:
    return (
        "the cluster has no masters now" if slot == ANY else f"no node of the cluster serves slot {slot} now"
    )


async def _same(node: str) -> str:
    return node


def _slot(waiting: Waiting) -> int:
    """Of the first key: all keys of a call share their slot, a plain command's key is its first argument."""
    if waiting.call is not None:
        return slot_of(waiting.call.keys[0])
    name, *rest = waiting.command
    if str(name).upper() in KEYLESS or not rest:
        return ANY
    key = rest[0]
    return slot_of(key if isinstance(key, bytes) else str(key))
