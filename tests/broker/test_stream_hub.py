"""The process's one subscription: it comes back after it was lost, and knows of every reader."""

import asyncio

import pytest

import broker.ear
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import Status, new_job_id
from broker.producer import Producer
from broker.stream import Mailbox, Message, ReplyHub
from tests.broker.jobs import KEYS, POOL, Backdoor, submission
from tests.broker.stream_ends import Writer, numbered, payloads, read
from tests.conditions import wait_until

HERE = new_job_id(POOL)


async def test_reader_survives_the_loss_of_its_subscription(
    pipe: Pipe, hub: ReplyHub, writer: Writer, backdoor: Backdoor
) -> None:
    with hub.mailbox(writer.lease.job_id) as box:
        reading = asyncio.create_task(read(pipe, box))
        for _ in range(3):
            await writer.write(2)
            backdoor.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await writer.write(1)
        await writer.finish()
        assert payloads(await reading) == numbered(1, 1, 9)


async def test_watchers_that_come_during_a_reconnect_get_everything(
    pipe: Pipe, hub: ReplyHub, writer: Writer, backdoor: Backdoor
) -> None:
    job_id = writer.lease.job_id

    async def watched() -> list[Message]:
        async with hub.watch(job_id) as box:
            return await read(pipe, box)

    backdoor.ask("CLIENT", "KILL", "TYPE", "pubsub")
    watchers: list[asyncio.Task[list[Message]]] = []
    while len(watchers) < 100:
        watchers.append(asyncio.create_task(watched()))
        await writer.write(1)
    await wait_until(lambda: subscribers(backdoor, hub.address(HERE)) == 1, what="subscribed again")
    await writer.finish()
    for messages in await asyncio.gather(*watchers):
        assert payloads(messages) == numbered(1, 1, writer.seq)


async def test_hub_keeps_one_subscription_however_watchers_come(
    hub: ReplyHub, backdoor: Backdoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second connection would be read by nobody."""
    monkeypatch.setattr(broker.ear, "RECONNECT_S", 0.0)

    async def watch_and_go() -> None:
        async with hub.watch(new_job_id(POOL)):
            await asyncio.sleep(0)

    for _ in range(10):
        backdoor.ask("CLIENT", "KILL", "TYPE", "pubsub")
        for _ in range(10):
            await asyncio.gather(*(watch_and_go() for _ in range(5)))
    await wait_until(lambda: backdoor.ask("CLIENT", "LIST", "TYPE", "pubsub").count(b"\n") == 1)
    await wait_until(lambda: subscribers(backdoor, hub.address(HERE)) == 1)
    with hub.mailbox(HERE) as heard:
        backdoor.ask("PUBLISH", hub.address(HERE), f"{HERE} done 1 0 0 succeeded\nx")
        assert (await wait_for_message(heard)).data == b"x"


async def wait_for_message(box: Mailbox) -> Message:
    while (message := await box.get()) is None:
        pass
    return message


def subscribers(backdoor: Backdoor, channel: str) -> int:
    return int(backdoor.ask("PUBSUB", "NUMSUB", channel)[1])


async def test_watchers_hear_that_a_job_runs(
    pipe: Pipe, hub: ReplyHub, producer: Producer, worker: Consumer
) -> None:
    job = submission()
    await producer.submit(job)
    async with hub.watch(job.job_id) as box:
        await wait_until(lambda: not box.missed or hub._watched)
        assert await box.get() is None
        reading = asyncio.create_task(wait_for_message(box))
        await wait_until(lambda: not box.missed)
        await worker.claim(1)
        message = await reading
    assert (message.kind, message.status, message.data) == ("running", Status.RUNNING, b"w1")


async def test_nothing_is_kept_of_readers_that_left(
    hub: ReplyHub, writer: Writer, backdoor: Backdoor
) -> None:
    job_id = writer.lease.job_id
    async with hub.watch(job_id), hub.watch(job_id):
        assert await wait_until(lambda: subscribers(backdoor, KEYS.output(job_id)))
    await wait_until(lambda: subscribers(backdoor, KEYS.output(job_id)) == 0)
    assert (hub._boxes, hub._watched) == ({}, {})
