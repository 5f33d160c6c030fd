"""Chunks reach the replay buffer in order, coalesced, whole, also over an outage of Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.errors import RedisAway
from broker.job import Lease
from broker.keys import PoolKeys
from broker.policy import Asking, Limits
from broker.producer import Producer
from tests.conditions import wait_until
from tests.workers.conftest import POOL, submission
from workers.appender import Appender

KEYS = PoolKeys(POOL)


class Flaky(Consumer):
    """Fails the first `failures` writes after they may have been applied."""

    failures = 0
    calls = 0

    async def append(self, chunks: "list[Chunk]", *, maxlen: int = 10_000) -> list[bool]:  # type: ignore[override]
        self.calls += 1
        written = await super().append(chunks, maxlen=maxlen)
        if self.failures:
            self.failures -= 1
            raise RedisAway("cut after the write")
        return written


@asynccontextmanager
async def rig(url: str, delay_s: float) -> AsyncIterator[tuple[Pipe, Flaky, Appender, Lease, list[str]]]:
    pipe, stale = Pipe(url), list[str]()
    consumer = Flaky(pipe, url, pool=POOL, asking=Asking("w", 10.0), limits=Limits())
    appender = Appender(consumer, delay_s=delay_s, on_stale=stale.append)
    task = asyncio.create_task(appender.run())
    await Producer(pipe).submit(submission())
    lease = (await consumer.claim(1)).leases[0]
    appender.open(lease)
    yield pipe, consumer, appender, lease, stale
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await Producer(pipe).cancel(lease.job_id)
    await consumer.close()
    await pipe.close()


async def stored(pipe: Pipe, job_id: str) -> list[tuple[str, bytes]]:
    entries = await pipe.command("XRANGE", KEYS.output(job_id), "-", "+")
    return [(entry_id.decode(), data) for entry_id, (_, data) in entries]


async def test_first_chunk_goes_at_once_and_later_ones_wait_for_company(redis_url: str) -> None:
    async with rig(redis_url, delay_s=3600) as (pipe, _, appender, lease, _stale):
        appender.add(lease.job_id, b"1", count=1)
        await wait_until(lambda: stored(pipe, lease.job_id))
        appender.add(lease.job_id, b"2", count=1)
        appender.add(lease.job_id, b"3\n4", count=2)
        assert await stored(pipe, lease.job_id) == [(f"{lease.token}-1", b"1")]
        await appender.flush(lease.job_id)
        entries = [(f"{lease.token}-1", b"1"), (f"{lease.token}-4", b"2\n3\n4")]
        assert await stored(pipe, lease.job_id) == entries


async def test_chunks_are_written_once_over_an_outage(redis_url: str) -> None:
    async with rig(redis_url, delay_s=0) as (pipe, consumer, appender, lease, stale):
        consumer.failures = 2
        for number in range(1, 6):
            appender.add(lease.job_id, b"%d" % number, count=1)
            await asyncio.sleep(0)
        await appender.flush(lease.job_id)
        entries = await stored(pipe, lease.job_id)
        assert b"\n".join(data for _, data in entries).split(b"\n") == [b"1", b"2", b"3", b"4", b"5"]
        assert entries[-1][0] == f"{lease.token}-5"
        assert not stale


async def test_stale_token_is_reported_and_writes_nothing(redis_url: str) -> None:
    async with rig(redis_url, delay_s=0) as (pipe, _, appender, lease, stale):
        await Producer(pipe).cancel(lease.job_id)
        appender.add(lease.job_id, b"late", count=1)
        await appender.flush(lease.job_id)
        assert stale == [lease.job_id]
        assert await stored(pipe, lease.job_id) == []
