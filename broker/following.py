"""Reading a job to its end: live messages while they continue what was seen, else what the replay buffer holds."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from broker.connection import Pipe
from broker.errors import RedisAway, StreamLost, UnknownJob
from broker.job import Status, queue_of
from broker.keys import PoolKeys
from broker.stream import Mailbox, Message, Position

REPLAY_ENTRIES = 256
RECONNECT_S = 0.2
PATIENCE_S = 10.0  # with a Redis that restarts, while a reader waits


async def follow(pipe: Pipe, box: Mailbox, *, after: Position) -> AsyncIterator[Message]:
    """Everything told about the mailbox's job after `after`, once each and in order, ending with `done`.

    Replayed chunks come as messages of kind chunk. A chunk with a higher token than the one before it begins the
    answer anew. An escalated job is followed by its successor, whose tokens are higher. Raises StreamLost if the buffer
    no longer holds what comes after `after`; UnknownJob; RedisAway.
    """
    seen, ended = after, False
    while not ended:
        message = await box.get()
        if message is None or _is_ahead(message, seen):
            async for past in _catch_up(pipe, box.job_id, seen=seen):
                told = past if past.status is not Status.ESCALATED else _handed_on(box, past, seen=seen)
                yield told
                seen, ended = max(seen, told.at), told.kind == "done"
        elif message.status is Status.ESCALATED:
            yield _handed_on(box, message, seen=seen)
        elif message.kind != "chunk":
            yield message
            ended = message.kind == "done"
        elif message.at > seen:
            yield _beyond(message, seen)
            seen = message.at


def _handed_on(box: Mailbox, end: Message, *, seen: Position) -> Message:
    """The box reads the successor from here on; for its reader the job is back in the queue."""
    heir, _, why = end.data.decode().partition(" ")
    box.move_to(heir, why)
    return Message(heir, "retry", seen, end.queue_s, Status.QUEUED, b"")


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
    keys = PoolKeys(queue_of(job_id))
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
