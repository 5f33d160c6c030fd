"""Reading what workers write: one subscription per process, a bounded mailbox per reader, replay for what was missed.

A reader gets every chunk once and in order: live messages are taken while they continue what it has seen; after a
reconnect, an overflow or a late start it reads the replay buffer first. Memory per reader is bounded by MAILBOX_BYTES.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from broker.ear import Ear, Heard
from broker.job import Status, queue_of
from broker.keys import ROOT, PoolKeys
from broker.locate import locator

MAILBOX_BYTES = 1 << 20
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

    def __init__(self, job_id: str, *, move: Callable[["Mailbox", str], None] | None = None) -> None:
        """`move`: has the box receive what is told about another job."""
        self.job_id = job_id
        self.missed = False
        self.why = ""  # the job was escalated, the last time
        self.passed: list[tuple[str, str]] = []  # passes before this one: id, and why it was handed on
        self._move = move
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

    def move_to(self, heir: str, why: str) -> None:
        """From now on the job's successor is read, from its beginning."""
        self.why = why
        self.passed.append((self.job_id, why))
        if self._move is not None:
            self._move(self, heir)
        self.job_id = heir
        self.lose()

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
        """The channel that the job's answers come by: one per queue and process, as a script stays in its slot."""
        return PoolKeys(queue_of(job_id)).reply(self._process)

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

    def leave_all(self, reason: Exception) -> None:
        """Every reader's `get` raises `reason` from now on."""
        for boxes in self._boxes.values():
            for box in boxes:
                box.leave(reason)

    @contextlib.contextmanager
    def mailbox(self, job_id: str) -> Iterator[Mailbox]:
        """Receives what is told about a job whose `reply_to` is this hub. Open it before submitting.

        With the first job of a queue its answers' channel is subscribed; readers replay when that is confirmed.
        """
        queue = queue_of(job_id)
        self._ear(queue).want(PoolKeys(queue).reply(self._process))
        box = Mailbox(job_id, move=self._move)
        self._boxes.setdefault(job_id, set()).add(box)
        try:
            yield box
        finally:
            self._remove(box)
            if box.job_id != job_id:
                self._unwatch(box.job_id)

    @contextlib.asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Mailbox]:
        """Receives what is told about any job. Starts with a replay, since it may have begun."""
        with self.mailbox(job_id) as box:
            box.lose()
            self._watch(job_id)
            try:
                yield box
            finally:
                self._unwatch(job_id)

    def _move(self, box: Mailbox, heir: str) -> None:
        """A reader of one job goes on with the job that has taken its place, in another queue. It happens once."""
        self._remove(box)
        self._boxes.setdefault(heir, set()).add(box)
        self._watch(heir)

    def _remove(self, box: Mailbox) -> None:
        self._boxes[box.job_id].discard(box)
        if not self._boxes[box.job_id]:
            del self._boxes[box.job_id]

    def _watch(self, job_id: str) -> None:
        queue = queue_of(job_id)
        channel = PoolKeys(queue).output(job_id)
        self._watched[channel] = self._watched.get(channel, 0) + 1
        self._ear(queue).want(channel)

    def _unwatch(self, job_id: str) -> None:
        queue = queue_of(job_id)
        channel = PoolKeys(queue).output(job_id)
        self._watched[channel] -= 1
        if not self._watched[channel]:
            del self._watched[channel]
            self._ear(queue).drop(channel)

    def _ear(self, queue: str) -> Ear:
        name = queue if self._locator.sharded else ""
        if name not in self._ears:
            self._listen(name, Ear(self._locator, PoolKeys(queue).prefix, hear=self._hear))
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
        queue = head.partition("}:reply:")[0].removeprefix(f"{ROOT}{{")
        if job_id:
            meant = [self._boxes.get(job_id, set())]
        else:
            meant = [boxes for name, boxes in self._boxes.items() if queue_of(name) == queue]
        for boxes in meant:
            for box in boxes:
                box.lose()
