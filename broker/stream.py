"""Reading what workers write: one subscription per process, a bounded mailbox per reader, replay for what was missed.

A reader gets every chunk once and in order: live messages are taken while they continue what it has seen; after a
reconnect, an overflow or a late start it reads the replay buffer first. Memory per reader is bounded by MAILBOX_BYTES.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

from broker.connection import Pipe
from broker.ear import Ear, Heard
from broker.errors import RedisAway, StreamLost, UnknownJob
from broker.job import Status, pool_of
from broker.keys import ROOT, PoolKeys
from broker.locate import locator

MAILBOX_BYTES = 1 << 20
REPLAY_ENTRIES = 256
RECONNECT_S = 0.2
PATIENCE_S = 10.0  # with a Redis that restarts, while a reader waits
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
    """The process's one subscriber. `address(job_id)` goes into the job's submission as `reply_to`."""

    def __init__(self, url: str) -> None:
        self._process = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._locator = locator(url)
        self._ears: dict[str, Ear] = {}
        self._boxes: dict[str, set[Mailbox]] = {}
        self._watched: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def address(self, job_id: str) -> str:
        """The channel that the job's answers come by: one per pool and process, as a script stays in its pool's slot."""
        return PoolKeys(pool_of(job_id)).reply(self._process)

    async def start(self) -> None:
        """Connects. Raises RedisAway."""
        await self._locator.masters()  # from here on it is known whether channels belong to slots
        if not self._locator.sharded:
            ear = Ear(self._locator, "", hear=self._hear)
            await ear.open()
            self._listen("", ear)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(ear.close() for ear in self._ears.values()))

    @contextlib.contextmanager
    def mailbox(self, job_id: str) -> Iterator[Mailbox]:
        """Receives what is told about a job whose `reply_to` is this hub. Open it before submitting.

        With the first job of a pool its answers' channel is subscribed; readers replay when that is confirmed.
        """
        pool = pool_of(job_id)
        self._ear(pool).want(PoolKeys(pool).reply(self._process))
        box = Mailbox(job_id)
        self._boxes.setdefault(job_id, set()).add(box)
        try:
            yield box
        finally:
            self._boxes[job_id].discard(box)
            if not self._boxes[job_id]:
                del self._boxes[job_id]

    @contextlib.asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Mailbox]:
        """Receives what is told about any job. Starts with a replay, since it may have begun."""
        pool = pool_of(job_id)
        channel = PoolKeys(pool).output(job_id)
        with self.mailbox(job_id) as box:
            box.lose()
            self._watched[channel] = self._watched.get(channel, 0) + 1
            try:
                self._ear(pool).want(channel)
                yield box
            finally:
                self._watched[channel] -= 1
                if not self._watched[channel]:
                    del self._watched[channel]
                    self._ear(pool).drop(channel)

    def _ear(self, pool: str) -> Ear:
        name = pool if self._locator.sharded else ""
        if name not in self._ears:
            self._listen(name, Ear(self._locator, PoolKeys(pool).prefix, hear=self._hear))
        return self._ears[name]

    def _listen(self, name: str, ear: Ear) -> None:
        self._ears[name] = ear
        self._tasks.append(asyncio.create_task(ear.run()))

    def _hear(self, heard: Heard) -> None:
        if heard.data is not None:
            if boxes := self._boxes.get(heard.data[: heard.data.find(b" ")].decode()):
                message = parse_message(heard.data)
                for box in boxes:
                    box.put(message)
            return
        # A subscription has begun, perhaps again: only from here on nothing is missed
        head, _, job_id = heard.channel.partition("}:out:")
        pool = head.partition("}:reply:")[0].removeprefix(f"{ROOT}{{")
        for name, boxes in self._boxes.items():
            if name == job_id or (not job_id and pool_of(name) == pool):
                for box in boxes:
                    box.lose()


async def follow(pipe: Pipe, box: Mailbox, *, after: Position) -> AsyncIterator[Message]:
    """Everything told about the mailbox's job after `after`, once each and in order, ending with `done`.

    Replayed chunks come as messages of kind chunk. A chunk with a higher token than the one before it begins the
    answer anew. Raises StreamLost if the buffer no longer holds what comes after `after`; UnknownJob; RedisAway.
    """
    seen, ended = after, False
    while not ended:
        message = await box.get()
        if message is None or _is_ahead(message, seen):
            async for message in _catch_up(pipe, box.job_id, seen=seen):
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


async def _catch_up(pipe: Pipe, job_id: str, *, seen: Position) -> AsyncIterator[Message]:
    """A replay that goes on where it was when Redis comes back, within PATIENCE_S: a restart breaks no stream."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + PATIENCE_S
    while True:
        try:
            async for message in _replay(pipe, job_id, seen=seen):
                yield message
                seen = message.at
        except RedisAway:
            if loop.time() > give_up:
                raise
            await asyncio.sleep(RECONNECT_S)
        else:
            return


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
        end = Position(int(token or 0), int(seq or 0))  # zero is not stored
        if end.seq > 0 and seen < end:
            raise StreamLost(f"the chunks of {job_id} after {seen} are no longer kept")
        data = await pipe.command("GET", keys.result(job_id))
        yield Message(job_id, "done", end, queue_s, state, data or b"")
