"""Submissions that are answered only when they are on the server's disk: WAITAOF, where the server has it (Redis 7.2).

WAITAOF answers for the writes of its own connection and holds that connection up meanwhile (up to a second with
`appendfsync everysec`). So durable calls have connections of their own, and calls that come while all of them wait share
the next one that is free. docs/durability.md says what this promises.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from broker.errors import RedisAway
from broker.keys import PoolKeys
from broker.link import Link, Waiting
from broker.locate import Locator
from broker.script import Argument, Call
from broker.topology import tag_of

LANES = 4
MOST = 1000  # calls before one WAITAOF
ASK_AGAIN_S = 60.0  # an operator may have turned AOF on
CANNOT = ("unknown command", "appendonly is disabled")


@dataclass(slots=True, eq=False)
class _Order:
    """`calls` are all of one pool."""

    calls: Sequence[Call]
    future: "asyncio.Future[list[Any]]"


@dataclass(slots=True)
class _Lanes:
    """The connections of one pool's slot (cluster), or of all pools."""

    idle: list[Link]
    queue: list[_Order] = field(default_factory=list)


class Durable:
    """`possible`: the server has not said yet that it cannot."""

    def __init__(self, locator: Locator, *, timeout_s: float) -> None:
        self._locator = locator
        self._timeout_s = timeout_s
        self._lanes: dict[str, _Lanes] = {}
        self._links: list[Link] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ask_again = 0.0

    @property
    def possible(self) -> bool:
        return time.monotonic() >= self._ask_again

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """All answers in order, once what the calls wrote is on disk. Raises RedisAway: it may have been written."""
        groups: dict[str, list[int]] = {}
        for number, call in enumerate(calls):
            groups.setdefault(tag_of(call.keys[0]), []).append(number)
        asked = [self._ask(tag, [calls[n] for n in numbers]) for tag, numbers in groups.items()]
        answers: list[Any] = [None] * len(calls)
        for numbers, group in zip(groups.values(), await asyncio.gather(*asked), strict=True):
            for number, answer in zip(numbers, group, strict=True):
                answers[number] = answer
        return answers

    def _ask(self, pool: str, calls: Sequence[Call]) -> "asyncio.Future[list[Any]]":
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        name = pool if self._locator.topology.kind == "cluster" else ""
        if name not in self._lanes:
            find = partial(self._locator.find, calls[0].keys[0])
            links = [
                Link(find, timeout_s=self._timeout_s, on_lost=self._locator.forget) for _ in range(LANES)
            ]
            self._lanes[name] = _Lanes(links)
            self._links += links
        lanes = self._lanes[name]
        lanes.queue.append(_Order(calls, future))
        self._start(lanes)
        return future

    def _start(self, lanes: _Lanes) -> None:
        while lanes.queue and lanes.idle:
            orders, size = list[_Order](), 0
            while lanes.queue and (not orders or size + len(lanes.queue[0].calls) <= MOST):
                orders.append(lanes.queue.pop(0))
                size += len(orders[-1].calls)
            task = asyncio.create_task(self._commit(lanes, lanes.idle.pop(), orders=orders))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _commit(self, lanes: _Lanes, link: Link, *, orders: list[_Order]) -> None:
        calls = [call for order in orders for call in order.calls]
        answers: list[Any] = [RedisAway("the connection to Redis was closed")] * len(calls)
        try:
            await self._locator.find(calls[0].keys[0])  # whether it is sharded, is known after this
            answers = await self._send(link, calls)
        except RedisAway as error:
            answers = [error] * len(calls)
        finally:
            lanes.idle.append(link)
            for order in orders:
                mine, answers = answers[: len(order.calls)], answers[len(order.calls) :]
                _settle(order.future, mine)
            self._start(lanes)

    async def _send(self, link: Link, calls: Sequence[Call]) -> list[Any]:
        """What each call was answered, or the error it met."""
        commands, known = list[tuple[Argument, ...]](), set[str]()
        for call in calls:
            ready = call.sharded() if self._locator.sharded else call
            # NOSCRIPT would have it sent again after the WAITAOF: so a script's text comes first
            commands.append(ready.evalsha() if ready.script.sha in known else ready.eval())
            known.add(ready.script.sha)
        # A job that is known already writes nothing, and WAITAOF would answer for nothing: this is a write in any case
        stats = PoolKeys(tag_of(calls[0].keys[0])).named("stats")
        commands.append(("HINCRBY", stats, "durable", len(calls)))
        commands.append(("WAITAOF", 1, 0, round(self._timeout_s * 800)))
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in commands]
        for command, future in zip(commands, futures, strict=True):
            link.ask(Waiting(None, command, future))
        *answers, written, on_disk = await asyncio.gather(*futures, return_exceptions=True)
        if isinstance(written, BaseException):
            return [a if isinstance(a, BaseException) else written for a in answers]
        if isinstance(on_disk, ResponseError) and any(text in str(on_disk) for text in CANNOT):
            self._ask_again = time.monotonic() + ASK_AGAIN_S
        elif isinstance(on_disk, BaseException):
            return [a if isinstance(a, BaseException) else on_disk for a in answers]
        elif on_disk[0] < 1:
            late = RedisAway(f"Redis has not written to its disk within {self._timeout_s * 0.8:g} s")
            return [a if isinstance(a, BaseException) else late for a in answers]
        return answers

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links))


def _settle(future: "asyncio.Future[list[Any]]", answers: list[Any]) -> None:
    if future.done():
        return
    error = next((answer for answer in answers if isinstance(answer, BaseException)), None)
    if error is None:
        future.set_result(answers)
    else:
        future.set_exception(error)
        future.exception()  # a caller that was cancelled meanwhile will not fetch it
