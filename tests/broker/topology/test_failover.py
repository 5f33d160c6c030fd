"""A master dies, or a slot moves: what is connected finds the new place by itself, and goes on."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from broker.errors import RedisAway
from broker.job import Status
from broker.scripts import Ending
from broker.stream import ReplyHub
from broker.topology import slot_of
from tests.broker.stream_ends import Writer, numbered, payloads, read
from tests.broker.topology.conftest import Queue, patiently
from tests.broker.topology.places import Node, follows
from tests.conditions import wait_until
from workers.heartbeat import Heartbeat

END = Ending(succeeded=True, data=b"{}")


def master_of(queue: Queue) -> Node:
    """The node that has the test's pool."""
    masters = queue.place.masters()
    if queue.place.name == "sentinel":
        [master] = masters
        return master
    slot = slot_of(queue.keys.prefix)
    rows = masters[0].ask("CLUSTER", "SLOTS")
    port = next(int(row[2][1]) for row in rows if int(row[0]) <= slot <= int(row[1]))
    return next(node for node in queue.place.nodes if node.port == port)


@pytest.fixture
async def doomed(queue: Queue) -> AsyncIterator[Node]:
    """The pool's master; afterwards it is back, as a replica of its successor."""
    node = master_of(queue)
    yield node
    if node.process.poll() is not None:
        node.start_again()
        if queue.place.name == "sentinel":
            follow(queue, node)
    await wait_until(lambda: follows(node), timeout_s=20)


def follow(queue: Queue, node: Node) -> None:
    """What the sentinels do too, after ten seconds."""
    master = next(other for other in queue.place.masters() if other is not node)
    node.ask("REPLICAOF", "127.0.0.1", master.port)


async def replicated(queue: Queue, node: Node) -> None:
    """All that was written is on a replica (what is not, a failover loses: docs/durability.md)."""
    await queue.pipe.command("HINCRBY", queue.keys.named("stats"), "written", 1)
    offset = int(node.ask("INFO", "replication").partition("master_repl_offset:")[2].split()[0])
    await wait_until(lambda: _acknowledged(node) >= offset)


async def fails_at_last(queue: Queue, job_id: str) -> None:
    while True:  # the loss of a connection is noticed a moment later
        await queue.producer.get(job_id)


def _acknowledged(node: Node) -> int:
    line = node.ask("INFO", "replication").partition("slave0:")[2].splitlines()[0]
    return int(line.partition("offset=")[2].partition(",")[0])


@pytest.mark.places("sentinel", "cluster")
async def test_everything_goes_on_with_the_new_master(queue: Queue, doomed: Node) -> None:
    running, lost = await queue.leased(), list[str]()
    waiting = queue.submission()
    await queue.producer.submit(waiting)
    heartbeat = Heartbeat(queue.place.url, pool=queue.pool, worker_id="w1", lease_s=3)
    heartbeat.hold([running], time.monotonic() + 60)
    heartbeat.start(lambda: b"{}", lost.extend)
    await queue.worker.wait(0.01)
    await replicated(queue, doomed)
    doomed.kill()
    with pytest.raises(RedisAway):
        await fails_at_last(queue, running.job_id)
    await patiently(lambda: queue.worker.finish(running, END))
    [lease] = (await patiently(lambda: queue.worker.claim(1))).leases
    assert lease.job_id == waiting.job_id
    assert (await queue.producer.get(running.job_id)).status is Status.SUCCEEDED
    heartbeat.drop(running.job_id)
    heartbeat.hold([lease], time.monotonic())
    await wait_until(lambda: heartbeat.trusted_until(lease.job_id) > time.monotonic() + 2.5)
    await asyncio.to_thread(heartbeat.stop)


@pytest.mark.places("sentinel", "cluster")
async def test_readers_and_waiting_workers_find_the_new_master(queue: Queue, doomed: Node) -> None:
    writer = Writer(queue.worker, await queue.leased())
    with queue.hub.mailbox(writer.lease.job_id) as box:
        reading = asyncio.create_task(patiently(lambda: read(queue.pipe, box)))
        await writer.write(2)
        await replicated(queue, doomed)
        doomed.kill()
        await patiently(lambda: writer.worker.finish(writer.lease, END))
        messages = await reading
    assert payloads(messages)[-2:] == numbered(1, 1, 2)
    assert messages[-1].kind == "done"

    async def woken() -> bool:
        try:
            await queue.worker.wait(0.01)
        except (RedisAway, OSError):
            return False
        return True

    await wait_until(woken)
    job = queue.submission()
    with queue.hub.mailbox(job.job_id) as box:
        await queue.producer.submit(job)
        await queue.producer.cancel(job.job_id)
        assert (await read(queue.pipe, box))[-1].status is Status.CANCELLED


@pytest.mark.places("sentinel", "cluster")
async def test_submission_outlasts_a_failover_that_is_asked_for(queue: Queue, doomed: Node) -> None:
    """The old master lives on as a replica, which refuses writes."""
    await queue.producer.submit(queue.submission())
    await replicated(queue, doomed)
    if queue.place.name == "sentinel":
        queue.place.sentinels[0].ask("SENTINEL", "FAILOVER", "queue")
        await wait_until(lambda: len(queue.place.masters()) == 2)
        follow(queue, doomed)
    else:
        replica = next(node for node in queue.place.nodes if _follows(node, doomed))
        replica.ask("CLUSTER", "FAILOVER", "FORCE")
    await wait_until(lambda: doomed.ask("ROLE")[0] == "slave", timeout_s=15)
    jobs = [queue.submission() for _ in range(10)]
    accepted = await patiently(lambda: queue.producer.submit_many(jobs))
    assert len(accepted) == 10
    assert len((await queue.worker.claim(20)).leases) == 11


def _follows(node: Node, master: Node) -> bool:
    role = node.ask("ROLE")
    return role[0] == "slave" and int(role[2]) == master.port


@pytest.mark.places("cluster", "cluster-6.2", "cluster-8")
async def test_a_slot_that_moves_takes_its_pool_along(queue: Queue) -> None:
    writer = Writer(queue.worker, await queue.leased())
    job_id = writer.lease.job_id
    with queue.hub.mailbox(job_id) as box:
        reading = asyncio.create_task(read(queue.pipe, box))
        await writer.write(1)
        source = master_of(queue)
        target = next(node for node in queue.place.masters() if node is not source)
        slot = slot_of(queue.keys.prefix)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))
        written = asyncio.create_task(
            writer.write(1)
        )  # between the nodes: it is sent until the slot has arrived
        assert (
            await queue.pipe.command("GET", queue.keys.fair("nobody")) is None
        )  # by ASK, for it is not there
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *queue.place.masters()):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.ask("CLUSTER", "MYID"))
        await written
        await writer.write(1)
        await writer.finish()
        assert payloads(await reading) == numbered(1, 1, 3)
    await queue.worker.wait(0.01)
    other = ReplyHub(queue.place.url)
    await other.start()
    async with other.watch(job_id) as box:
        assert payloads(await read(queue.pipe, box)) == numbered(1, 1, 3)
    await other.close()
