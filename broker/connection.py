"""Connections to Redis: clients with the right time-outs, and `Pipe`, the one way to run scripts.

`Pipe` owns a connection, sends whatever was asked for since the last write in one go and never ties an answer to a
caller's task. So a cancelled await cannot mix up replies (redis-py#2665), and concurrency turns into pipelining.
"""

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from broker.errors import MemoryFull, RedisAway, RedisUnsuitable
from broker.scripts import Argument, Call

log = logging.getLogger("headway.connection")
MIN_VERSION = (6, 2)
CONNECT_TIMEOUT_S = 2.0
# Redis 6.2 wraps what a script met: "Error running script (call to f_<sha>): @user_script:27: @user_script: 27: -OOM ..."
CODE = re.compile(
    r"(?:Error running script .*?: -)?(OOM|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY|MISCONF)\b"
)


def connect(url: str, *, timeout_s: float | None = 5.0) -> redis.asyncio.Redis:
    """A client that never repeats a command by itself: only the caller knows whether that is safe.

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


@dataclass(slots=True, eq=False)
class _Waiting:
    """One command on its way: what was asked, and who is told."""

    call: Call | None
    command: tuple[Argument, ...]
    future: "asyncio.Future[Any]"


class Pipe:
    """Pipelines commands of all tasks of one event loop over one connection.

    `run` and `command` raise RedisAway when the connection fails before the answer: the command may have been
    applied. Connects on first use and again after any failure. Answers older than `timeout_s` fail the connection.
    """

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self._client = connect(url, timeout_s=None)
        self._timeout_s = timeout_s
        self._connection: AbstractConnection | None = None
        self._unsent: list[_Waiting] = []
        self._sent: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def run(self, call: Call) -> Any:
        """The script's answer. Raises RedisAway, MemoryFull."""
        return await self._ask(call, call.evalsha())

    async def command(self, *command: Argument) -> Any:
        """A plain Redis command's raw answer."""
        return await self._ask(None, command)

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """All answers in order, errors raised as by `run`; one round trip."""
        asked = [self._ask(call, call.evalsha()) for call in calls]
        return list(await asyncio.gather(*asked))

    def _ask(self, call: Call | None, command: tuple[Argument, ...]) -> "asyncio.Future[Any]":
        if self._closed:
            raise RedisAway("this connection to Redis was closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._unsent.append(_Waiting(call, command, future))
        self._wake.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._serve())]
        return future

    async def _serve(self) -> None:
        while not self._closed:
            await self._wake.wait()
            try:
                connection = await self._open()
                await self._exchange(connection)
            except (RedisError, OSError, EOFError) as error:
                await self._fail(f"lost the connection to Redis ({error})")
            except Exception as error:  # outermost guard: without this loop nobody gets an answer again
                log.exception("a command could not be sent")
                await self._fail(f"a command could not be sent to Redis ({error})")

    async def _open(self) -> AbstractConnection:
        connection: AbstractConnection = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        self._connection = connection
        try:
            async with asyncio.timeout(
                self._timeout_s
            ):  # the handshake too: a server that hangs accepts connections
                await connection.connect()  # type: ignore[no-untyped-call]
        except TimeoutError:
            raise RedisError(f"no connection within {self._timeout_s:g} s") from None
        return connection

    async def _exchange(self, connection: AbstractConnection) -> None:
        reader = asyncio.create_task(self._read(connection))
        writer = asyncio.create_task(self._write(connection))
        watch = asyncio.create_task(self._watch())
        tasks = {reader, writer, watch}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._unsent = self._unsent, []
            self._sent.extend(batch)
            # redis-py packs in Python: 20 us for an enqueue, hiredis 3 us
            commands = [hiredis.pack_command(w.command) for w in batch]  # type: ignore[arg-type] # its stub takes one word
            await connection.send_packed_command(b"".join(commands), check_health=False)

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            try:
                answer = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                answer = error
            waiting = self._sent.popleft()
            if isinstance(answer, NoScriptError) and waiting.call is not None:
                self._unsent.append(_Waiting(None, waiting.call.eval(), waiting.future))
                self._wake.set()
            elif not waiting.future.done():
                _resolve(waiting.future, answer)

    async def _watch(self) -> None:
        """Ends the exchange if the oldest unanswered command has not changed for a whole time-out."""
        while True:
            oldest = self._sent[0] if self._sent else None
            await asyncio.sleep(self._timeout_s)
            if oldest is not None and self._sent and self._sent[0] is oldest:
                raise RedisError(f"no answer within {self._timeout_s:g} s")

    async def _fail(self, message: str) -> None:
        waiting = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent = []
        self._wake.clear()
        for item in waiting:
            if not item.future.done():
                item.future.set_exception(RedisAway(message))
                item.future.exception()  # a caller that was cancelled meanwhile will not fetch it
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._connection.disconnect(nowait=True)
            self._connection = None

    async def close(self) -> None:
        """Fails what is unanswered. Idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fail("the connection to Redis was closed")
        await self._client.aclose()


def _resolve(future: "asyncio.Future[Any]", answer: object) -> None:
    if isinstance(answer, Exception):
        future.set_exception(_translate(answer))
    else:
        future.set_result(answer)


def _translate(error: Exception) -> Exception:
    """A server that is loading, read-only or failing over is away; any other error is a fault of ours."""
    code = CODE.match(str(error))
    if isinstance(error, OutOfMemoryError) or (code and code[1] == "OOM"):
        return MemoryFull("the queue's memory is full; nothing was accepted", retry_after_s=5.0)
    named = type(error).__name__ in (
        "BusyLoadingError",
        "ReadOnlyError",
        "MasterDownError",
        "ClusterDownError",
    )
    return RedisAway(f"Redis cannot take commands now ({error})") if named or code else error
