"""Reading what workers write: one subscription per process, a bounded mailbox per reader, replay for what was missed.

A reader gets every chunk once and in order: live messages are taken while they continue what it has seen; after a
reconnect, an overflow or a late start it reads the replay buffer first. Memory per reader is bounded by MAILBOX_BYTES.
"""

import asyncio
import contextlib
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from broker.connection import Pipe, connect
from broker.errors import StreamLost, UnknownJob
from broker.job import Status, pool_of
from broker.keys import ROOT, PoolKeys

MAILBOX_BYTES = 1 << 20
REPLAY_ENTRIES = 256
RECONNECT_S = 0.2
SUBSCRIBE_S = 5.0
DIGITS = 19  # of an event id's halves; Redis' stream ids are pairs of 64-bit numbers


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The last payload a reader has: attempt's token, number within it. The text form is an SSE event id."""

    token: int = 0
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.token}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Raises ValueError for anything but `<digits>-<digits>`, and for numbers that Redis does not take."""
        token, _, seq = text.partition("-")
        if not all(half.isascii() and half.isdigit() and len(half) <= DIGITS for half in (token, seq)):
            raise ValueError(f"{text[:60]!r} is not an event id")
        return cls(int(token), int(seq))


@dataclass(frozen=True, slots=True)
class Message:
    """`kind`: running, chunk, retry or done. `data`: chunks joined by newlines, or the answer or error of `done`."""

    job_id: str
    kind: str
    at: Position
    queue_s: float
    status: Status
    data: bytes


def parse_message(raw: bytes) -> Message:
    """Reads what `_tell.lua` writes."""
    head, _, data = raw.partition(b"\n")
    job_id, kind, token, seq, queue_ms, status = head.decode().split(" ")
    return Message(job_id, kind, Position(int(token), int(seq)), float(queue_ms) / 1000, Status(status), data)


class Mailbox:
    """One reader's messages. When full it drops everything and says so: the reader replays then."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.missed = False
        self._left: Exception | None = None
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._ready = asyncio.Event()

    def put(self, message: Message) -> None:
        self._bytes += len(message.data)
        if self._bytes > MAILBOX_BYTES and message.kind != "done":
            self.lose()
            return
        self._messages.append(message)
        self._ready.set()

    def lose(self) -> None:
        """Something may have been missed, by overflow or reconnect."""
        self._messages.clear()
        self._bytes = 0
        self.missed = True
        self._ready.set()

    def leave(self, reason: Exception) -> None:
        """Ends the reading: `get` raises `reason` from now on, whatever is left in the box."""
        self._left = reason
        self._ready.set()

    async def get(self) -> Message | None:
        """The next message, or None when messages may be missing. Raises what `leave` was given."""
        while True:
            if self._left is not None:
                raise self._left
            if self.missed:
                self.missed = False
                return None
            if self._messages:
                message = self._messages.popleft()
                self._bytes -= len(message.data)
                return message
            self._ready.clear()
            await self._ready.wait()


class ReplyHub:
    """The process's one subscriber. `address` goes into submissions as `reply_to`."""

    def __init__(self, url: str) -> None:
        self.address = f"{ROOT}reply:{os.getpid()}-{os.urandom(4).hex()}"
        self._client = connect(url, timeout_s=None)
        self._connection: AbstractConnection | None = None
        self._boxes: dict[str, set[Mailbox]] = {}
        self._watched: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once subscribed. Raises RedisError, OSError."""
        connection = await self._subscribe()
        self._task = asyncio.create_task(self._listen(connection))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._disconnect()
        await self._client.aclose()

    @contextlib.contextmanager
    def mailbox(self, job_id: str) -> Iterator[Mailbox]:
        """Receives what is told about a job whose `reply_to` is this hub. Open it before submitting."""
        box = Mailbox(job_id)
        self._boxes.setdefault(job_id, set()).add(box)
        try:
            yield box
        finally:
            left = self._boxes[job_id]
            left.discard(box)
            if not left:
                del self._boxes[job_id]

    @contextlib.asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Mailbox]:
        """Receives what is told about any job. Starts with a replay, since it may have begun."""
        channel = PoolKeys(pool_of(job_id)).output(job_id)
        with self.mailbox(job_id) as box:
            box.lose()
            self._watched[channel] = self._watched.get(channel, 0) + 1
            try:
                if self._watched[channel] == 1:
                    await self._tell("SUBSCRIBE", channel)
                yield box
            finally:
                self._watched[channel] -= 1
                if not self._watched[channel]:
                    del self._watched[channel]
                    await self._tell("UNSUBSCRIBE", channel)

    async def _subscribe(self) -> AbstractConnection:
        """A new connection that is subscribed to all that is watched by now. Raises RedisError, OSError."""
        await self._disconnect()
        connection: AbstractConnection = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                await connection.connect()  # type: ignore[no-untyped-call]
                self._connection = connection  # from here on, watchers that come subscribe by themselves
                await connection.send_command("SUBSCRIBE", self.address, *self._watched, check_health=False)
                await connection.read_response(disable_decoding=True)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _tell(self, command: str, channel: str) -> None:
        """Without a connection there is nothing to do: the next one subscribes to what is watched by then.

        redis-py's PubSub would connect here, beside the listener that reconnects too: one of the two leaks.
        """
        if self._connection is not None and self._connection.is_connected:
            with contextlib.suppress(RedisError, OSError):
                await self._connection.send_command(command, channel, check_health=False)

    async def _listen(self, connection: AbstractConnection) -> None:
        while True:
            try:
                self._dispatch(await connection.read_response(disable_decoding=True))
            except (RedisError, OSError):
                connection = await self._reconnect()

    async def _reconnect(self) -> AbstractConnection:
        """Subscribes anew until it works, then has every reader replay."""
        while True:
            await asyncio.sleep(RECONNECT_S)
            with contextlib.suppress(RedisError, OSError):
                connection = await self._subscribe()
                for box in itertools.chain.from_iterable(self._boxes.values()):
                    box.lose()
                return connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)

    def _dispatch(self, item: list[Any]) -> None:
        kind, channel, raw = item
        if kind == b"subscribe":
            for box in self._boxes.get(channel.decode().partition("}:out:")[2], ()):
                box.lose()  # only now is nothing missed any more
        elif kind == b"message" and (boxes := self._boxes.get(raw[: raw.find(b" ")].decode())):
            message = parse_message(raw)
            for box in boxes:
                box.put(message)


async def follow(pipe: Pipe, box: Mailbox, *, after: Position) -> AsyncIterator[Message]:
    """Everything told about the mailbox's job after `after`, once each and in order, ending with `done`.

    Replayed chunks come as messages of kind chunk. A chunk with a higher token than the one before it begins the
    answer anew. Raises StreamLost if the buffer no longer holds what comes after `after`; UnknownJob; RedisAway.
    """
    seen, ended = after, False
    while not ended:
        message = await box.get()
        if message is None or _is_ahead(message, seen):
            async for message in _replay(pipe, box.job_id, seen=seen):
                yield message
                seen, ended = message.at, message.kind == "done"
        elif message.kind != "chunk":
            yield message
            ended = message.kind == "done"
        elif message.at > seen:
            yield _beyond(message, seen)
            seen = message.at


def _first(message: Message) -> int:
    """Number of the first payload in a chunk message."""
    return message.at.seq - message.data.count(b"\n")


def _is_ahead(message: Message, seen: Position) -> bool:
    """Whether chunks that come before this message have not been seen."""
    if message.kind == "done":
        return message.at.seq > 0 and message.at > seen
    if message.kind != "chunk" or message.at <= seen:
        return False
    return _first(message) > (seen.seq if message.at.token == seen.token else 0) + 1


def _beyond(message: Message, seen: Position) -> Message:
    """The message without payloads that were seen before."""
    known = seen.seq - _first(message) + 1 if message.at.token == seen.token else 0
    if known <= 0:
        return message
    return replace(message, data=message.data.split(b"\n", known)[known])


async def _replay(pipe: Pipe, job_id: str, *, seen: Position) -> AsyncIterator[Message]:
    """Whether it runs; stored chunks after `seen`; then `done` if the job had ended before they were read."""
    keys = PoolKeys(pool_of(job_id))
    names = ("status", "token", "seq", "created", "claimed", "finished")
    status, token, seq, created, *later = await pipe.command("HMGET", keys.job(job_id), *names)
    if status is None:
        raise UnknownJob(f"there is no job {job_id} (or its record has expired)")
    state = Status(status.decode())
    left_queue = next((float(at) for at in later if at), float(created))
    queue_s = (left_queue - float(created)) / 1000
    if state is Status.RUNNING:
        yield Message(job_id, "running", seen, queue_s, state, b"")
    while entries := await pipe.command(
        "XRANGE", keys.output(job_id), f"({seen}", "+", "COUNT", REPLAY_ENTRIES
    ):
        for entry_id, (_, data) in entries:
            message = Message(
                job_id, "chunk", Position.parse(entry_id.decode()), queue_s, Status.RUNNING, data
            )
            if _is_ahead(message, seen):
                raise StreamLost(f"the chunks of {job_id} after {seen} are no longer kept")
            yield _beyond(message, seen)
            seen = message.at
    if state.terminal:
        if int(seq) > 0 and seen < Position(int(token), int(seq)):
            raise StreamLost(f"the chunks of {job_id} after {seen} are no longer kept")
        data = await pipe.command("GET", keys.result(job_id))
        yield Message(job_id, "done", Position(int(token), int(seq)), queue_s, state, data or b"")
