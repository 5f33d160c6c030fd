"""One pipelined connection: sends whatever was asked for since the last write in one go, reads the answers in order.

An answer is never tied to a caller's task, so a cancelled await cannot mix up replies (redis-py#2665). `connection.Pipe`
owns one link (single server, Sentinel) or one per node (cluster).

A server that was found to be silent (hung, or behind a network that swallows everything) is tried in the background as
long as anybody asks. Meanwhile commands fail at once: only the first ones wait for the time-out.
"""

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from broker.errors import BrokerError, MemoryFull, RedisAway, RedisSilent
from broker.locate import ASK_S, bare_connection
from broker.script import Argument, Call

log = logging.getLogger("headway.connection")
# Redis 6.2 wraps what a script met: "Error running script (call to f_<sha>): @user_script:27: @user_script: 27: -OOM ..."
CODE = re.compile(
    r"(?:Error running script .*?: -)?(OOM|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|BUSY|MISCONF|NOREPLICAS)\b"
)
ELSEWHERE = (AskError, TryAgainError, ClusterDownError)  # nothing was executed. MovedError is an AskError
WRONG_SERVER = (ReadOnlyError, MasterDownError, *ELSEWHERE)


class _WrongServer(RedisError):
    """What has not been sent yet can go to the right one."""


class _Silent(RedisError):
    """It does not say no either."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One command on its way: what was asked, and who is told. `slot` and `until` (loop time): see `nodes.py`."""

    call: Call | None
    command: tuple[Argument, ...]
    future: "asyncio.Future[Any]"
    slot: int = 0
    until: float = 0.0

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # a caller that was cancelled meanwhile will not fetch it


class Link:
    """`find` names the server, each time that a connection is opened. A server that owes an answer and has given none for
    `timeout_s` fails the connection, and is `silent` until the next one is open.

    `on_elsewhere` takes commands that the server did not execute because they belong to another node;
    `on_lost` is told the URL of a server whose connection failed.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[str]],
        *,
        timeout_s: float,
        on_elsewhere: Callable[[Waiting, ResponseError], None] | None = None,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._find = find
        self._timeout_s = timeout_s
        self._on_elsewhere = on_elsewhere
        self._on_lost = on_lost
        self.silent = False
        self._missed = False  # somebody has asked while it was silent
        self._node = ""
        self._connection: AbstractConnection | None = None
        self._unsent: list[Waiting] = []
        self._sent: deque[Waiting] = deque()
        self._heard_at = 0.0  # loop time of the last answer, or since when one is owed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def ask(self, waiting: Waiting) -> None:
        if self.silent:
            self._missed = True
            waiting.fail(RedisSilent("Redis does not answer; it is tried again all the time"))
            return
        self._unsent.append(waiting)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while not self._closed:
            await self._wake.wait()
            try:
                connection = await self._open()
                self.silent = False
                await self._exchange(connection)
            except _Silent as error:
                self.silent, self._missed = self._missed or not self.silent, False
                await self._fail(f"Redis does not answer ({error})", kind=RedisSilent)
                if self.silent:
                    self._wake.set()
            except _WrongServer as error:
                await self._fail(f"lost the connection to Redis ({error})", unsent=False)
            except (RedisError, OSError, EOFError) as error:
                await self._fail(f"lost the connection to Redis ({error})")
            except BrokerError as error:
                await self._fail(str(error))
            except Exception as error:  # outermost guard: without this loop nobody gets an answer again
                log.exception("a command could not be sent")
                await self._fail(f"a command could not be sent to Redis ({error})")

    async def _open(self) -> AbstractConnection:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            # the handshake too: a server that hangs accepts connections
            async with asyncio.timeout(self._timeout_s):
                self._node = await self._find()
                connection = self._connection = bare_connection(self._node)
                await connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError, BrokerError) as error:  # TimeoutError is an OSError
            if loop.time() - began < min(ASK_S, self._timeout_s):
                raise
            raise _Silent(str(error) or f"no connection within {self._timeout_s:g} s") from None
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
            if not self._sent:
                self._heard_at = asyncio.get_running_loop().time()
            commands = _packed(batch)
            self._sent.extend(batch)
            await connection.send_packed_command(b"".join(commands), check_health=False)

    async def _read(self, connection: AbstractConnection) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                answer = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                answer = error
            self._heard_at = now()
            waiting = self._sent.popleft()
            if isinstance(answer, NoScriptError) and waiting.call is not None:
                waiting.command = waiting.call.eval()
                self._unsent.append(waiting)
                self._wake.set()
            elif isinstance(answer, ELSEWHERE) and self._on_elsewhere is not None:
                self._on_elsewhere(waiting, answer)
                continue
            elif not waiting.future.done():
                _resolve(waiting.future, answer)
            if isinstance(answer, WRONG_SERVER):  # the next connection looks for the right one
                raise _WrongServer(f"it is no longer the server to ask: {answer}")

    async def _watch(self) -> None:
        """Ends the exchange `timeout_s` after the last answer, if more are owed."""
        now = asyncio.get_running_loop().time
        while True:
            rest_s = self._heard_at + self._timeout_s - now() if self._sent else self._timeout_s
            if rest_s <= 0:
                raise _Silent(f"no answer within {self._timeout_s:g} s")
            await asyncio.sleep(rest_s)

    async def _fail(self, message: str, *, unsent: bool = True, kind: type[RedisAway] = RedisAway) -> None:
        waiting = [*self._sent, *(self._unsent if unsent else ())]
        self._sent.clear()
        if unsent:
            self._unsent = []
            self._wake.clear()
        for item in waiting:
            item.fail(kind(message))
        if self._node:
            self._on_lost(self._node)
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._connection.disconnect(nowait=True)
            self._connection = None

    async def close(self) -> None:
        """Fails what is unanswered. Idempotent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._fail("the connection to Redis was closed")


def _packed(batch: list[Waiting]) -> list[bytes]:
    """Takes out of `batch` what cannot be sent: that is a fault of who asked for it, who is told, and of nobody else."""
    try:
        # redis-py packs in Python: 20 us for an enqueue, hiredis 3 us
        return [hiredis.pack_command(w.command) for w in batch]  # type: ignore[arg-type] # its stub takes one word
    except (TypeError, ValueError) as error:  # neither a text nor a number; not to be had in UTF-8
        if len(batch) == 1:
            batch.pop().fail(error)
            return []
    each = [[item] for item in batch]
    commands = [command for one in each for command in _packed(one)]
    batch[:] = [item for one in each for item in one]
    return commands


def _resolve(future: "asyncio.Future[Any]", answer: object) -> None:
    if isinstance(answer, Exception):
        future.set_exception(translate(answer))
    else:
        future.set_result(answer)


def translate(error: Exception) -> Exception:
    """A server that is loading, read-only or failing over is away; any other error is a fault of ours."""
    code = CODE.match(str(error))
    if isinstance(error, OutOfMemoryError) or (code and code[1] == "OOM"):
        return MemoryFull("the queue's memory is full; nothing was accepted", retry_after_s=5.0)
    named = isinstance(error, (*WRONG_SERVER, BusyLoadingError))
    return RedisAway(f"Redis cannot take commands now ({error})") if named or code else error
