"""Renewal from a thread, and how long a lease may be trusted when it fails."""

import asyncio
import time
from collections.abc import Iterable

import orjson
import pytest

from api.cli.redis_server import find_binary
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import Lease
from broker.keys import PoolKeys
from broker.policy import Asking, Limits
from broker.producer import Producer
from tests.conditions import wait_until
from tests.conftest import start_redis
from tests.workers.conftest import POOL, submission
from workers.heartbeat import Heartbeat

KEYS = PoolKeys(POOL)


async def leased(pipe: Pipe, url: str) -> Lease:
    consumer = Consumer(pipe, url, pool=POOL, asking=Asking("w", 10.0), limits=Limits())
    await Producer(pipe).submit(submission())
    claimed = await consumer.claim(1)
    await consumer.close()
    return claimed.leases[0]


async def test_lease_is_lost_when_the_job_was_taken_away(redis_url: str) -> None:
    pipe, lost = Pipe(redis_url), list[str]()
    lease = await leased(pipe, redis_url)
    heartbeat = Heartbeat(redis_url, pool=POOL, worker_id="w", lease_s=0.3)
    heartbeat.hold([lease], time.monotonic())
    await Producer(pipe).cancel(lease.job_id)
    heartbeat.start(lambda: b"{}", lost.extend)
    await wait_until(lambda: lost == [lease.job_id])
    await asyncio.to_thread(heartbeat.stop)
    await pipe.close()


async def test_renewal_moves_the_lease_and_the_trust(redis_url: str) -> None:
    pipe = Pipe(redis_url)
    lease = await leased(pipe, redis_url)
    heartbeat = Heartbeat(redis_url, pool=POOL, worker_id="w", lease_s=30)
    held_at = time.monotonic() - 29
    heartbeat.hold([lease], held_at)
    before = await pipe.command("ZSCORE", KEYS.named("leases"), lease.job_id)
    heartbeat.start(lambda: b"{}", lambda _: None)
    await wait_until(lambda: heartbeat.trusted_until(lease.job_id) > held_at + 31)
    assert float(await pipe.command("ZSCORE", KEYS.named("leases"), lease.job_id)) > float(before) + 10_000
    heartbeat.drop(lease.job_id)
    assert heartbeat.trusted_until(lease.job_id) == 0
    await asyncio.to_thread(heartbeat.stop)
    await Producer(pipe).cancel(lease.job_id)
    await pipe.close()


async def test_lease_is_distrusted_before_it_runs_out_when_redis_is_away(
    redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pipe, lost = Pipe(redis_url), list[tuple[str, float]]()
    lease = await leased(pipe, redis_url)
    server, process = start_redis(find_binary(None), tmp_path_factory.mktemp("away"))
    process.kill()
    process.wait()
    heartbeat = Heartbeat(server.url, pool=POOL, worker_id="w", lease_s=1.0)
    held_at = time.monotonic()
    heartbeat.hold([lease], held_at)

    def on_lost(job_ids: Iterable[str]) -> None:
        lost.extend((job_id, time.monotonic()) for job_id in job_ids)

    heartbeat.start(lambda: b"{}", on_lost)
    await wait_until(lambda: lost)
    assert lost[0][0] == lease.job_id
    assert lost[0][1] < held_at + 1.0, "the worker stops before Redis may give the job away"
    await asyncio.to_thread(heartbeat.stop)
    await Producer(pipe).cancel(lease.job_id)
    await pipe.close()


async def test_a_beat_that_fails_by_a_fault_of_ours_is_logged_once_and_the_next_one_follows(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its leases are given up before they run out; with the first beat that succeeds the worker is there."""
    pipe, lost, tries = Pipe(redis_url), list[str](), list[int]()
    lease = await leased(pipe, redis_url)
    heartbeat = Heartbeat(redis_url, pool=POOL, worker_id="w", lease_s=0.3)

    def describe() -> bytes:
        tries.append(1)
        return b"{}" if lost else orjson.dumps(2**64)

    heartbeat.hold([lease], time.monotonic())
    heartbeat.start(describe, lost.extend)
    await wait_until(lambda: lost)
    assert lost[0] == lease.job_id
    assert len(tries) > 1
    await wait_until(lambda: pipe.command("EXISTS", KEYS.worker("w")))
    assert [record.exc_info is not None for record in caplog.records if "failed" in record.message] == [True]
    await asyncio.to_thread(heartbeat.stop)
    await Producer(pipe).cancel(lease.job_id)
    await pipe.close()


async def test_a_long_lease_does_not_make_a_worker_silent_for_longer_than_the_reaper_waits(
    redis_url: str,
) -> None:
    beats = [
        Heartbeat(redis_url, pool="small", worker_id="w", lease_s=lease_s).every_s for lease_s in (3.0, 600.0)
    ]
    assert beats == [1.0, 5.0]
