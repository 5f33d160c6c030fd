"""What the broker's tests share: a pipe, a producer and a worker on an empty Redis."""

import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from api.cli.redis_server import RedisServer, find_binary
from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import new_job_id
from broker.policy import Asking
from broker.producer import Producer
from broker.stream import ReplyHub
from tests.broker.jobs import KEYS, LIMITS, POOL, Backdoor, submission
from tests.broker.stream_ends import Writer
from tests.conftest import start_redis


@pytest.fixture
async def pipe(redis_url: str) -> AsyncIterator[Pipe]:
    """Afterwards what is still pending is cancelled, so that the leak check sees what ended jobs leave behind."""
    pipe = Pipe(redis_url)
    yield pipe
    timed = [await pipe.command("ZRANGE", KEYS.named(name), 0, -1) for name in ("deadlines", "aging")]
    pending = {job_id for ids in timed for job_id in ids}
    await pipe.run_all([scripts.cancel(job_id.decode()) for job_id in pending])
    await pipe.close()


@pytest.fixture
def producer(pipe: Pipe) -> Producer:
    return Producer(pipe)


@pytest.fixture
async def worker(pipe: Pipe, redis_url: str) -> AsyncIterator[Consumer]:
    consumer = Consumer(pipe, redis_url, pool=POOL, asking=Asking("w1"), limits=LIMITS)
    yield consumer
    await consumer.close()


@pytest.fixture
async def hub(redis_url: str) -> AsyncIterator[ReplyHub]:
    """Its answers' channel of the pool is subscribed."""
    hub = ReplyHub(redis_url)
    await hub.start()
    with hub.mailbox(new_job_id(POOL)) as box:
        assert await box.get() is None
    yield hub
    await hub.close()


@pytest.fixture
def backdoor(redis_url: str) -> Iterator[Backdoor]:
    with redis.Redis.from_url(redis_url) as client:
        yield Backdoor(client)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[tuple[RedisServer, subprocess.Popen[bytes]]]:
    """A server of the test's own, to stop, kill or fill."""
    server, process = start_redis(find_binary(), tmp_path)
    yield server, process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait(timeout=10)


@pytest.fixture
async def writer(producer: Producer, worker: Consumer, hub: ReplyHub) -> Writer:
    """Of a job that runs and replies to the hub."""
    job = submission(stream=True)
    await producer.submit(replace(job, reply_to=hub.address(job.job_id)))
    [lease] = (await worker.claim(1)).leases
    return Writer(worker, lease)
