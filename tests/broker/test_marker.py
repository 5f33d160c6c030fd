"""Waiting for work without polling: one job wakes one worker, and no wake-up is lost."""

import asyncio
import signal
import subprocess

import pytest
from redis.exceptions import RedisError

import broker.blocking
from api.cli.redis_server import RedisServer
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.producer import Producer
from tests.broker.jobs import Backdoor, another, submission
from tests.conditions import wait_until


async def test_wait_ends_when_a_job_comes(producer: Producer, worker: Consumer, backdoor: Backdoor) -> None:
    waiting = asyncio.create_task(worker.wait(5.0))
    await wait_until(lambda: b"cmd=bzpopmin" in backdoor.ask("CLIENT", "LIST", "TYPE", "normal"))
    await producer.submit(submission())
    await waiting
    assert len((await worker.claim(1)).leases) == 1


async def test_wait_ends_at_once_when_a_job_came_before(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    await producer.submit(submission())
    await worker.wait(5.0)
    assert backdoor.members("marker") == []


async def test_one_job_wakes_one_worker(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    async with another(pipe, redis_url, "w1") as one, another(pipe, redis_url, "w2") as two:
        waiting = {asyncio.create_task(worker.wait(5.0)) for worker in (one, two)}
        await wait_until(lambda: backdoor.ask("CLIENT", "LIST", "TYPE", "normal").count(b"cmd=bzpopmin") == 2)
        await producer.submit(submission())
        woken, asleep = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (len(woken), len(asleep)) == (1, 1)
        await one.wake_another()
        await asyncio.gather(*asleep)


async def test_claim_that_leaves_work_wakes_another(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    await producer.submit_many([submission(), submission()])
    await worker.wait(5.0)
    await worker.claim(1)
    assert backdoor.members("marker") == ["work"]
    await worker.wait(5.0)
    await worker.claim(1)
    assert backdoor.members("marker") == []


async def test_cancelled_wait_takes_no_marker_along(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    waiting = asyncio.create_task(worker.wait(5.0))
    await wait_until(lambda: b"cmd=bzpopmin" in backdoor.ask("CLIENT", "LIST", "TYPE", "normal"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await wait_until(lambda: b"cmd=bzpopmin" not in backdoor.ask("CLIENT", "LIST", "TYPE", "normal"))
    await producer.submit(submission())
    assert backdoor.members("marker") == ["work"]
    await worker.wait(5.0)


async def test_wait_on_a_server_that_hangs_fails(
    own_redis: tuple[RedisServer, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, process = own_redis
    pipe = Pipe(server.url)
    async with another(pipe, server.url, "w1") as worker:
        await worker.wait(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(broker.blocking, "GRACE_S", 0.0)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises((RedisError, OSError)):
                await worker.wait(0.01)
        process.send_signal(signal.SIGCONT)
        await worker.wait(0.01)
    await pipe.close()
