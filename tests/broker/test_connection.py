"""The one connection that all scripts go through: whose answer is whose, what happens when Redis is not there."""

import asyncio
import contextlib
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import redis.asyncio
from redis.exceptions import ResponseError

from api.cli.redis_server import RedisServer, free_port, wait_for
from broker import policy, scripts
from broker.connection import Pipe, check_server, connect
from broker.consumer import Consumer
from broker.errors import RedisAway, RedisUnsuitable
from broker.job import Status
from broker.policy import Asking
from broker.producer import Producer
from broker.scripts import Ending
from tests.broker.jobs import LIMITS, POOL, Backdoor, submission
from tests.conditions import wait_until, wait_until_sync

Own = tuple[RedisServer, subprocess.Popen[bytes]]
TIMEOUT_S = 0.1


@pytest.fixture
async def own_pipe(own_redis: Own) -> AsyncIterator[Pipe]:
    pipe = Pipe(own_redis[0].url, timeout_s=TIMEOUT_S)
    yield pipe
    await pipe.close()


def kill_9(own: Own) -> None:
    own[1].kill()
    own[1].wait(timeout=10)


def start_again(own: Own) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(own[0].argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_for(own[0].url, timeout_s=10)
    return process


async def answers_again(pipe: Pipe) -> None:
    async def answers() -> bool:
        with contextlib.suppress(RedisAway):
            return bool(await pipe.command("PING"))
        return False

    await wait_until(answers)


async def test_answers_go_to_who_asked(pipe: Pipe) -> None:
    asked = [b"%d" % number for number in range(2000)]
    assert await asyncio.gather(*(pipe.command("ECHO", text) for text in asked)) == asked


async def test_cancelled_await_does_not_mix_up_answers(pipe: Pipe) -> None:
    """Source: redis-py#2665, where the next caller got the cancelled one's answer."""
    rng = random.Random(7)

    async def ask(text: bytes) -> tuple[bytes, Any]:
        return text, await pipe.command("ECHO", text)

    for turn in range(20):
        tasks = [asyncio.create_task(ask(b"%d-%d" % (turn, number))) for number in range(50)]
        for _ in range(rng.randrange(4)):  # before, while and after the commands are sent
            await asyncio.sleep(0)
        left_out = rng.sample(tasks, 20)
        for task in left_out:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, asyncio.CancelledError) or (
                isinstance(answer, tuple) and answer[0] == answer[1]
            )


async def test_error_of_one_command_stays_with_it(pipe: Pipe) -> None:
    good, bad = pipe.command("ECHO", "a"), pipe.command("NOSUCHCOMMAND")
    assert await pipe.command("ECHO", "b") == b"b"
    assert await good == b"a"
    with pytest.raises(ResponseError):
        await bad


async def test_commands_that_cannot_be_sent_fail_alone_and_as_what_they_are(pipe: Pipe) -> None:
    words: list[Any] = ["a", "\ud800", "b", None, True, "c"]
    asked = await asyncio.gather(*(pipe.command("ECHO", word) for word in words), return_exceptions=True)
    assert [answer for answer in asked if isinstance(answer, bytes)] == [b"a", b"b", b"c"]
    assert [type(asked[n]) for n in (1, 3, 4)] == [UnicodeEncodeError, TypeError, TypeError]
    with pytest.raises(TypeError):
        await pipe.command("ECHO", words[3])
    assert await pipe.command("ECHO", "d") == b"d"


async def test_scripts_that_the_server_forgot_are_sent_again(pipe: Pipe, backdoor: Backdoor) -> None:
    jobs = [submission() for _ in range(5)]
    await pipe.run(scripts.enqueue(jobs[0], policy.Order()))
    backdoor.ask("SCRIPT", "FLUSH")
    calls = [scripts.enqueue(job, policy.Order()) for job in jobs]
    calls.insert(3, scripts.cancel(jobs[0].job_id))
    answers = await pipe.run_all(calls)
    assert [answer[3] for i, answer in enumerate(answers) if i != 3] == [b"queued", None, None, None, None]
    assert answers[3] == b"queued"
    assert backdoor.members("ready:0") == sorted(job.job_id for job in jobs[1:])


async def test_scripts_flushed_between_any_two_calls_do_no_harm(pipe: Pipe, backdoor: Backdoor) -> None:
    for _ in range(5):
        job = submission()
        for call in (scripts.enqueue(job, policy.Order()), scripts.cancel(job.job_id)):
            backdoor.ask("SCRIPT", "FLUSH")
            await pipe.run(call)
        assert backdoor.status(job.job_id) == "cancelled"


async def test_connection_that_is_killed_is_opened_again(pipe: Pipe, backdoor: Backdoor) -> None:
    number = await pipe.command("CLIENT", "ID")
    backdoor.ask("CLIENT", "KILL", "ID", number)
    answers = [await asyncio.gather(pipe.command("CLIENT", "ID"), return_exceptions=True) for _ in range(2)]
    assert (
        isinstance(answers[0][0], RedisAway) or answers[0][0] != number
    )  # it may have been seen before it was used
    assert answers[1][0] not in (number, None)


async def test_nobody_listening_is_away() -> None:
    pipe = Pipe(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(RedisAway):
        await pipe.command("PING")
    with pytest.raises(RedisAway):
        await pipe.run_all([scripts.cancel(submission().job_id)] * 3)
    await pipe.close()


async def test_server_that_stops_answering_is_away_until_it_goes_on(own_redis: Own, own_pipe: Pipe) -> None:
    assert await own_pipe.command("PING") == b"PONG"
    own_redis[1].send_signal(signal.SIGSTOP)
    with pytest.raises(RedisAway):
        await own_pipe.command("PING")
    own_redis[1].send_signal(signal.SIGCONT)
    await answers_again(own_pipe)
    assert await own_pipe.command("ECHO", "new") == b"new"


async def test_server_that_hangs_from_the_start_is_away(own_redis: Own, own_pipe: Pipe) -> None:
    """The kernel accepts the connection; the handshake is what gets no answer."""
    own_redis[1].send_signal(signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(RedisAway):
            await own_pipe.command("PING")
    own_redis[1].send_signal(signal.SIGCONT)
    await answers_again(own_pipe)


async def test_paused_server_is_away(own_redis: Own, own_pipe: Pipe) -> None:
    assert await own_pipe.command("SET", "k", "v") == b"OK"
    async with connect(own_redis[0].url) as client:
        await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # type: ignore[no-untyped-call]
        with pytest.raises(RedisAway):
            await own_pipe.command("SET", "k", "w")
        await client.execute_command("CLIENT", "UNPAUSE")  # type: ignore[no-untyped-call]
    await answers_again(own_pipe)


async def test_kill_9_of_redis_loses_no_accepted_job(own_redis: Own) -> None:
    pipe = Pipe(own_redis[0].url)
    await pipe.command("CONFIG", "SET", "appendfsync", "always")
    producer = Producer(pipe)
    worker = Consumer(pipe, own_redis[0].url, pool=POOL, asking=Asking("w1"), limits=LIMITS)
    running, waiting = submission(), submission()
    await producer.submit_many([running, waiting])
    [lease] = (await worker.claim(1)).leases
    kill_9(own_redis)
    with pytest.raises(RedisAway):
        await worker.finish(lease, Ending(succeeded=True, data=b"{}"))
    process = start_again(own_redis)
    await worker.finish(lease, Ending(succeeded=True, data=b"{}"))
    assert [lease.job_id for lease in (await worker.claim(2)).leases] == [waiting.job_id]
    assert (await producer.get(running.job_id)).status is Status.SUCCEEDED
    await worker.close()
    await pipe.close()
    process.kill()
    process.wait(timeout=10)


async def test_submit_outlasts_a_short_restart(own_redis: Own) -> None:
    """It repeats itself by id: the job is there once, whether or not the first try was applied."""
    pipe = Pipe(own_redis[0].url)
    producer, job = Producer(pipe), submission()
    await pipe.command("PING")
    kill_9(own_redis)
    submitting = asyncio.create_task(producer.submit(job))
    process = await asyncio.to_thread(start_again, own_redis)
    assert (await submitting).job_id == job.job_id
    assert (await producer.get(job.job_id)).status is Status.QUEUED
    await pipe.close()
    process.kill()
    process.wait(timeout=10)


async def test_close_fails_what_is_unanswered_and_what_comes_later(own_redis: Own) -> None:
    pipe = Pipe(own_redis[0].url)
    await pipe.command("PING")
    own_redis[1].send_signal(signal.SIGSTOP)
    asked = asyncio.ensure_future(pipe.command("PING"))
    await asyncio.sleep(0)
    await pipe.close()
    await pipe.close()
    with pytest.raises(RedisAway):
        await asked
    with pytest.raises(RedisAway):
        await pipe.command("PING")


async def test_close_leaves_no_connection_behind(redis_url: str, backdoor: Backdoor) -> None:
    pipe = Pipe(redis_url)
    number = await pipe.command("CLIENT", "ID")
    await pipe.close()
    wait_until_sync(lambda: f"id={number} ".encode() not in backdoor.ask("CLIENT", "LIST"))


async def test_loading_server_is_away_not_broken(pipe: Pipe, backdoor: Backdoor) -> None:
    """A script that is refused as by a replica after a failover: the caller may come again."""
    backdoor.ask("REPLICAOF", "127.0.0.1", free_port())
    try:
        with pytest.raises(RedisAway):
            await pipe.run(scripts.enqueue(submission(), policy.Order()))
    finally:
        backdoor.ask("REPLICAOF", "NO", "ONE")


async def test_check_accepts_this_server(redis_url: str) -> None:
    async with connect(redis_url) as client:
        assert "redis_version" in await check_server(client)


async def test_check_refuses_a_server_that_evicts(redis_url: str, backdoor: Backdoor) -> None:
    backdoor.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        async with connect(redis_url) as client:
            with pytest.raises(RedisUnsuitable, match="maxmemory-policy allkeys-lru"):
                await check_server(client)
    finally:
        backdoor.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("version", "fit"), [("5.0.14", False), ("6.0.20", False), ("6.2.0", True), ("10.0.1", True)]
)
async def test_check_refuses_a_server_that_is_too_old(version: str, fit: bool) -> None:
    """Only the server's answer is made up: nobody has all these versions at hand."""

    class Server:
        async def info(self) -> dict[str, str]:
            return {"redis_version": version, "maxmemory_policy": "noeviction"}

    client = cast("redis.asyncio.Redis", Server())
    if fit:
        await check_server(client)
    else:
        with pytest.raises(RedisUnsuitable, match=version):
            await check_server(client)


async def test_check_of_nobody_is_away() -> None:
    async with connect(f"redis://127.0.0.1:{free_port()}/0") as client:
        with pytest.raises(RedisAway):
            await check_server(client)
