"""What every Redis has to do for Headway, whatever it is made of."""

import asyncio
import time

import pytest
from celery import Celery

from broker import fleet
from broker.batch_record import BatchSpec
from broker.batches import BatchStore
from broker.celery_options import celery_options
from broker.connection import check_servers
from broker.errors import RedisUnsuitable
from broker.job import Status
from broker.scripts import Ending, Return
from broker.stream import ReplyHub
from tests.broker.stream_ends import Writer, numbered, payloads, read
from tests.broker.topology.conftest import Queue, patiently
from tests.conditions import wait_until
from workers.chores.main import open_redis
from workers.control import hear_aborts
from workers.heartbeat import Heartbeat

ANSWER = Ending(succeeded=True, data=b'{"text":"hi"}')


async def test_servers_are_fit(queue: Queue) -> None:
    assert "redis_version" in await check_servers(queue.place.url)


async def test_a_job_goes_from_its_producer_through_a_worker_to_its_reader(queue: Queue) -> None:
    job = queue.submission()
    with queue.hub.mailbox(job.job_id) as box:
        assert (await queue.producer.submit(job)).created
        reading = asyncio.create_task(read(queue.pipe, box))
        [lease] = (await queue.worker.claim(1)).leases
        writer = Writer(queue.worker, lease)
        for size in (1, 2, 3):
            await writer.write(size)
        await queue.worker.finish(lease, ANSWER)
        messages = await reading
    assert payloads(messages) == numbered(1, 1, 6)
    assert (messages[-1].kind, messages[-1].data) == ("done", ANSWER.data)
    assert (await queue.producer.get(job.job_id)).status is Status.SUCCEEDED


async def test_what_is_told_comes_live_and_not_only_by_replay(queue: Queue) -> None:
    job = queue.submission()
    with queue.hub.mailbox(job.job_id) as box:
        assert await box.get() is None  # subscribed
        await queue.producer.submit(job)
        await queue.producer.cancel(job.job_id)
        message = await box.get()
    assert message is not None
    assert (message.kind, message.status) == ("done", Status.CANCELLED)


async def test_a_watcher_in_another_process_reads_the_whole_stream(queue: Queue) -> None:
    other = ReplyHub(queue.place.url)
    await other.start()
    writer = Writer(queue.worker, await queue.leased())
    await writer.write(2)
    async with other.watch(writer.lease.job_id) as box:
        reading = asyncio.create_task(read(queue.pipe, box))
        await writer.write(2)
        await writer.finish()
        assert payloads(await reading) == numbered(1, 1, 4)
    await other.close()


async def test_cancelling_a_running_job_reaches_its_worker(queue: Queue) -> None:
    aborted: list[tuple[str, int]] = []
    hearing = asyncio.create_task(
        hear_aborts(queue.place.url, queue.pool, on_abort=lambda *abort: aborted.append(abort))
    )

    async def cancelled_and_heard() -> bool:
        lease = await queue.leased()
        await queue.producer.cancel(lease.job_id)
        return (lease.job_id, lease.token) in aborted

    await wait_until(cancelled_and_heard)  # until it has subscribed, nobody hears
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)


async def test_a_lease_that_ran_out_is_given_to_another(queue: Queue) -> None:
    lease = await queue.leased()
    await queue.pipe.command("ZADD", queue.keys.named("leases"), "XX", 1, lease.job_id)
    assert (await queue.worker.reap())[0] == 1
    [again] = (await queue.worker.claim(1)).leases
    assert (again.job_id, again.token > lease.token) == (lease.job_id, True)


async def test_a_waiting_worker_is_woken_by_a_submission(queue: Queue) -> None:
    waiting = asyncio.create_task(queue.worker.wait(60.0))
    await queue.producer.submit(queue.submission())
    async with asyncio.timeout(4):  # less than the longest block
        await waiting
    assert len((await queue.worker.claim(1)).leases) == 1


async def test_heartbeat_renews_what_is_held_and_reports_what_is_lost(queue: Queue) -> None:
    kept, gone = await queue.leased(), await queue.leased()
    await queue.producer.cancel(gone.job_id)
    lost: list[str] = []
    heartbeat = Heartbeat(queue.place.url, pool=queue.pool, worker_id="w1", lease_s=30)
    heartbeat.hold([kept, gone], time.monotonic() - 29)
    heartbeat.start(lambda: b"{}", lost.extend)
    await wait_until(lambda: heartbeat.trusted_until(kept.job_id) > time.monotonic() + 20)
    await wait_until(lambda: gone.job_id in lost)
    await asyncio.to_thread(heartbeat.stop)


async def test_a_released_job_is_tried_again(queue: Queue) -> None:
    lease = await queue.leased()
    await queue.worker.release(lease, Return("busy"))
    [again] = (await queue.worker.claim(1)).leases
    assert again.job_id == lease.job_id


async def test_forgotten_scripts_are_sent_again(queue: Queue) -> None:
    for node in queue.place.masters():
        node.ask("SCRIPT", "FLUSH")
    jobs = [queue.submission() for _ in range(20)]
    accepted = await queue.producer.submit_many(jobs)
    assert all(one.created for one in accepted)
    claimed = await queue.worker.claim(20)
    assert {lease.job_id for lease in claimed.leases} == {job.job_id for job in jobs}


async def test_durable_submissions_are_queued_whatever_the_server_can(queue: Queue) -> None:
    jobs = [queue.submission() for _ in range(5)]
    first = await asyncio.gather(*(queue.producer.submit(job, durable=True) for job in jobs))
    second = await queue.producer.submit_many(jobs, durable=True)
    assert [one.created for one in [*first, *second]] == [True] * 5 + [False] * 5


async def test_keys_outside_pools_have_slots_of_their_own(queue: Queue) -> None:
    await fleet.announce_pool(queue.pipe, queue.pool)
    assert queue.pool in await fleet.known_pools(queue.pipe)
    store = BatchStore(queue.pipe, ttl_s=60.0)
    batches = [await store.create(BatchSpec("file-a", "/v1/completions")) for _ in range(5)]
    found = [await store.get(batch.batch_id) for batch in batches]
    assert [batch.batch_id for batch in found] == [batch.batch_id for batch in batches]
    for batch in batches:
        await store.cancel(batch.batch_id)


async def test_answers_from_all_nodes_go_to_who_asked(queue: Queue) -> None:
    names = [f"hw:{{{queue.pool}-{number}}}:fair:t" for number in range(300)]
    await asyncio.gather(*(queue.pipe.command("SET", name, name, "EX", 60) for name in names))
    got = await asyncio.gather(*(queue.pipe.command("GET", name) for name in names))
    assert [value.decode() for value in got] == names


@pytest.mark.places("redis-8", "valkey")
async def test_a_durable_submission_has_been_written_to_disk(queue: Queue) -> None:
    [node] = queue.place.nodes
    node.ask("CONFIG", "SET", "appendfsync", "always")
    job = queue.submission()
    await queue.producer.submit(job, durable=True)
    node.ask("CONFIG", "SET", "appendfsync", "everysec")
    assert await queue.pipe.command("HGET", queue.keys.named("stats"), "durable") == b"1"
    started = node.ask("INFO", "commandstats")
    assert "cmdstat_waitaof:" in started
    node.kill()
    node.start_again()
    assert (await patiently(lambda: queue.producer.get(job.job_id))).status is Status.QUEUED


@pytest.mark.places("redis-8", "cluster-8", "valkey")
async def test_durable_submissions_at_the_same_time_share_their_waits(queue: Queue) -> None:
    """With `everysec` each wait takes up to a second: 100 in a row would take a minute."""
    jobs = [queue.submission() for _ in range(100)]
    async with asyncio.timeout(10):
        accepted = await asyncio.gather(*(queue.producer.submit(job, durable=True) for job in jobs))
    assert all(one.created for one in accepted)


@pytest.mark.places("path")
async def test_a_server_without_waitaof_is_asked_once_and_used_without(queue: Queue) -> None:
    facts = await check_servers(queue.place.url)
    if tuple(int(part) for part in facts["redis_version"].split(".")[:2]) >= (7, 2):
        pytest.skip("this one has it")
    assert queue.pipe._durable.possible
    await queue.producer.submit(queue.submission(), durable=True)
    assert not queue.pipe._durable.possible
    await queue.producer.submit(queue.submission(), durable=True)
    assert len((await queue.worker.claim(2)).leases) == 2


@pytest.mark.places("cluster", "cluster-8", "cluster-6.2")
async def test_channels_belong_to_slots_where_the_cluster_can_do_that(queue: Queue) -> None:
    sharded = "redis_version:6" not in queue.place.nodes[0].ask("INFO", "server")
    job = queue.submission()
    with queue.hub.mailbox(job.job_id) as box:
        assert await box.get() is None
        heard = [
            node.ask("PUBSUB", "SHARDCHANNELS" if sharded else "CHANNELS") for node in queue.place.masters()
        ]
    assert heard.count([queue.hub.address(job.job_id)]) == 1


@pytest.mark.places("cluster", "cluster-6.2")
async def test_all_masters_have_to_be_fit(queue: Queue) -> None:
    last = queue.place.masters()[-1]
    last.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(RedisUnsuitable):
        await check_servers(queue.place.url)
    last.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.places("sentinel")
async def test_celery_and_rq_find_the_master_too(queue: Queue) -> None:
    def ask() -> tuple[bool, str]:
        app = Celery("test", set_as_current=False)
        app.conf.update(celery_options(queue.place.url))
        with app.connection() as connection:
            connection.ensure_connection(max_retries=1)
            reached = connection.connected
        with open_redis(queue.place.url) as client:
            return reached, str(client.execute_command("ROLE")[0])

    reached, role = await asyncio.to_thread(ask)
    assert reached
    assert "master" in role
