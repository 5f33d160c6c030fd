"""A reader gets every payload once and in order, however it comes by them: live, replayed, or both."""

import asyncio

import pytest

import broker.following
from broker.connection import Pipe
from broker.errors import StreamLost, UnknownJob
from broker.job import Status, new_job_id
from broker.producer import Producer
from broker.scripts import Ending
from broker.stream import Message, Position, ReplyHub, parse_message
from tests.broker.jobs import ERROR, KEYS, POOL, Backdoor, submission
from tests.broker.stream_ends import Writer, numbered, payloads, read
from tests.conditions import wait_until


async def test_live_chunks_come_in_order_and_end_with_done(pipe: Pipe, hub: ReplyHub, writer: Writer) -> None:
    with hub.mailbox(writer.lease.job_id) as box:
        reading = asyncio.create_task(read(pipe, box))
        for count in (1, 3, 2):
            await writer.write(count)
        await writer.finish()
        messages = await reading
    assert payloads(messages) == numbered(1, 1, 6)
    assert messages[-1].kind == "done"
    assert messages[-1].status is Status.SUCCEEDED
    assert messages[-1].at == Position(writer.lease.token, 6)


@pytest.mark.parametrize("succeeded", [True, False])
async def test_done_brings_the_answer_or_the_error(
    pipe: Pipe, hub: ReplyHub, writer: Writer, succeeded: bool
) -> None:
    data = b'{"answer":"line one\\nline two"}' if succeeded else ERROR
    with hub.mailbox(writer.lease.job_id) as live, hub.mailbox(writer.lease.job_id) as late:
        late.lose()
        await writer.worker.finish(writer.lease, Ending(succeeded, data))
        for box in (live, late):
            [done] = await read(pipe, box)
            assert (done.kind, done.data) == ("done", data)
            assert done.status is (Status.SUCCEEDED if succeeded else Status.FAILED)
            assert done.queue_s >= 0


async def test_late_reader_replays_everything(pipe: Pipe, hub: ReplyHub, writer: Writer) -> None:
    await writer.write(2)
    await writer.write(1)
    await writer.finish()
    async with hub.watch(writer.lease.job_id) as box:
        messages = await read(pipe, box)
    assert payloads(messages) == numbered(1, 1, 3)
    assert [message.kind for message in messages].count("done") == 1


async def test_replay_and_live_overlap_without_a_repeat(pipe: Pipe, hub: ReplyHub, writer: Writer) -> None:
    """The mailbox holds what the replay brings as well."""
    with hub.mailbox(writer.lease.job_id) as box:
        await writer.write(2)
        await writer.write(2)
        await wait_until(lambda: len(box._messages) == 2)
        box.missed = True
        reading = asyncio.create_task(read(pipe, box))
        await writer.write(1)
        await writer.finish()
        assert payloads(await reading) == numbered(1, 1, 5)


async def test_replay_is_read_in_pages(
    pipe: Pipe, hub: ReplyHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.following, "REPLAY_ENTRIES", 3)
    for _ in range(10):
        await writer.write(2)
    await writer.finish()
    async with hub.watch(writer.lease.job_id) as box:
        assert payloads(await read(pipe, box)) == numbered(1, 1, 20)


async def test_reader_that_is_too_slow_replays(
    pipe: Pipe, hub: ReplyHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.stream, "MAILBOX_BYTES", 20)
    with hub.mailbox(writer.lease.job_id) as box:
        await writer.write(1)
        for _ in range(20):
            await writer.write(3)
        await writer.finish()
        await wait_until(lambda: box.missed)
        assert sum(len(message.data) for message in box._messages) <= 20
        assert payloads(await read(pipe, box)) == numbered(1, 1, 61)


@pytest.mark.parametrize("seq", [0, 3, 4, 5, 8])
async def test_last_event_id_may_lie_in_the_middle_of_an_entry(
    pipe: Pipe, hub: ReplyHub, writer: Writer, seq: int
) -> None:
    """Entries hold 1-3, 4-6, 7-8."""
    for count in (3, 3, 2):
        await writer.write(count)
    await writer.finish()
    async with hub.watch(writer.lease.job_id) as box:
        messages = await read(pipe, box, Position(writer.lease.token, seq))
    assert payloads(messages) == numbered(1, seq + 1, 8)
    assert messages[-1].kind == "done"


async def test_live_entry_that_was_seen_in_part_brings_the_rest(
    pipe: Pipe, hub: ReplyHub, writer: Writer
) -> None:
    with hub.mailbox(writer.lease.job_id) as box:
        await writer.write(4)
        await writer.finish()
        assert payloads(await read(pipe, box, Position(writer.lease.token, 2))) == numbered(1, 3, 4)


async def test_new_attempt_begins_the_answer_anew(pipe: Pipe, hub: ReplyHub, writer: Writer) -> None:
    with hub.mailbox(writer.lease.job_id) as box:
        reading = asyncio.create_task(read(pipe, box))
        await writer.write(3)
        second = await writer.starts_again()
        await second.write(2)
        await second.finish()
        messages = await reading
    assert payloads(messages) == [*numbered(1, 1, 3), *numbered(2, 1, 2)]
    assert [message.kind for message in messages] == ["chunk", "retry", "chunk", "done"]


async def test_reader_of_an_old_attempt_is_brought_to_the_new_one(
    pipe: Pipe, hub: ReplyHub, writer: Writer
) -> None:
    await writer.write(3)
    second = await writer.starts_again()
    await second.write(2)
    await second.finish()
    async with hub.watch(writer.lease.job_id) as box:
        assert payloads(await read(pipe, box, Position(writer.lease.token, 2))) == ["1.3", "2.1", "2.2"]


async def test_what_was_trimmed_is_said_to_be_lost(
    pipe: Pipe, hub: ReplyHub, writer: Writer, backdoor: Backdoor
) -> None:
    for _ in range(4):
        await writer.write(1)
    backdoor.ask("XTRIM", KEYS.output(writer.lease.job_id), "MAXLEN", 2)
    await writer.finish()
    async with hub.watch(writer.lease.job_id) as box:
        with pytest.raises(StreamLost):
            await read(pipe, box, Position(writer.lease.token, 1))
    async with hub.watch(writer.lease.job_id) as box:
        assert payloads(await read(pipe, box, Position(writer.lease.token, 2))) == numbered(1, 3, 4)


async def test_end_of_the_buffer_that_was_trimmed_is_lost_too(
    pipe: Pipe, hub: ReplyHub, writer: Writer, backdoor: Backdoor
) -> None:
    await writer.write(4)
    backdoor.ask("XTRIM", KEYS.output(writer.lease.job_id), "MAXLEN", 0)
    await writer.finish()
    async with hub.watch(writer.lease.job_id) as box:
        with pytest.raises(StreamLost):
            await read(pipe, box, Position(writer.lease.token, 2))


async def test_unknown_job_has_no_stream(pipe: Pipe, hub: ReplyHub) -> None:
    async with hub.watch(new_job_id(POOL)) as box:
        with pytest.raises(UnknownJob):
            await read(pipe, box)


@pytest.mark.parametrize("replayed", [False, True])
async def test_reader_of_a_cancelled_job_is_told(
    pipe: Pipe, hub: ReplyHub, producer: Producer, replayed: bool
) -> None:
    job_id = new_job_id(POOL)
    job = submission(job_id=job_id, reply_to=hub.address(job_id))
    await producer.submit(job)
    with hub.mailbox(job.job_id) as box:
        await producer.cancel(job.job_id)
        await wait_until(lambda: box._messages)
        box.missed = replayed
        [done] = await read(pipe, box)
    assert (done.kind, done.status, done.data) == ("done", Status.CANCELLED, b"")


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "1-2-3", "a-b", "1.0-2", "²-1", "1 -2", "99999999999999999999-0", "-"]
)
def test_what_is_no_event_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Position.parse(text)


def test_event_id_reads_back() -> None:
    assert Position.parse(str(Position(3, 77))) == Position(3, 77)
    assert Position(1, 9) < Position(2, 1) < Position(2, 2)


def test_message_reads_what_the_scripts_publish() -> None:
    message = parse_message(b"job_x.small chunk 2 7 1500 running\nfirst\nsecond")
    assert message == Message("job_x.small", "chunk", Position(2, 7), 1.5, Status.RUNNING, b"first\nsecond")
