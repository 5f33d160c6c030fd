"""Redis behind a network that cuts, stalls, slows and swallows; and one that takes no writes for a while."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from api.cli.redis_server import free_port
from broker import ear, producer, scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import RedisAway, RedisSilent
from broker.job import ServiceClass
from broker.policy import Asking
from broker.producer import Producer
from broker.script import Argument, Call
from broker.stream import ReplyHub
from broker.thread_link import ThreadLink
from tests.broker.jobs import KEYS, LIMITS, POOL, Backdoor, submission
from tests.broker.stream_ends import Writer, numbered, payloads, read
from tests.conditions import wait_until
from tests.tcp_proxy import TcpProxy

TIMEOUT_S = 0.3
DELAY_S = 0.02
BUSY_MS = 10
READ_BYTES = 16_384  # Redis answers what it has read at once together, and reads no more than this
BUSY = f"""
local function ms() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
local til = ms() + {BUSY_MS}
while ms() < til do end
return 1"""


def url_of(proxy: TcpProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


@pytest.fixture
async def far(proxy: TcpProxy) -> AsyncIterator[Pipe]:
    """Through the proxy."""
    pipe = Pipe(url_of(proxy))
    yield pipe
    await pipe.close()


@pytest.fixture
async def brief(proxy: TcpProxy) -> AsyncIterator[Pipe]:
    """Through the proxy, and not patient."""
    pipe = Pipe(url_of(proxy), timeout_s=TIMEOUT_S)
    yield pipe
    await pipe.close()


async def works(ask: Callable[[], Awaitable[object]]) -> None:
    """Waits until it does."""

    async def answered() -> bool:
        with contextlib.suppress(RedisAway, OSError):
            await ask()
            return True
        return False

    await wait_until(answered)


async def test_silence_is_waited_for_once_and_then_known(brief: Pipe, proxy: TcpProxy) -> None:
    await brief.command("PING")
    proxy.stall()
    answers = await asyncio.gather(*(brief.command("PING") for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {RedisSilent}
    asked = [asyncio.create_task(brief.command("PING")) for _ in range(3)]
    await asyncio.sleep(0)
    assert all(task.done() and isinstance(task.exception(), RedisSilent) for task in asked)
    with pytest.raises(RedisSilent):
        await Producer(brief).submit(submission())
    proxy.let_pass()
    await works(lambda: brief.command("PING"))


async def test_an_answer_that_is_owed_is_waited_for_one_time_out_and_not_two(
    brief: Pipe, proxy: TcpProxy
) -> None:
    """Whenever it was asked for: between two looks at the clock too."""
    await brief.command("PING")
    proxy.stall()
    await asyncio.sleep(0.1 * TIMEOUT_S)
    too_late = asyncio.create_task(asyncio.sleep(1.7 * TIMEOUT_S))
    asked = asyncio.create_task(brief.command("PING"))
    await asyncio.wait({asked, too_late}, return_when=asyncio.FIRST_COMPLETED)
    assert asked.done()
    assert isinstance(asked.exception(), RedisSilent)


class Counted(Pipe):
    """Knows how often a submission was tried: by its queue's announcement, and then by itself."""

    tries = 0

    async def command(self, *command: Argument) -> Any:
        self.tries += 1
        return await super().command(*command)

    async def run_all(self, calls: Sequence[Call], *, durable: bool = False) -> list[Any]:
        self.tries += 1
        return await super().run_all(calls, durable=durable)


async def test_submissions_are_repeated_in_the_first_moments_of_an_outage_and_then_refused_at_once(
    proxy: TcpProxy, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "SUBMIT_PATIENCE_S", 0.25)
    counted, job = Counted(url_of(proxy)), submission()
    submits = Producer(counted)
    proxy.cut()
    with pytest.raises(RedisAway):
        await submits.submit(job)
    assert counted.tries > 1
    before = counted.tries
    with pytest.raises(RedisAway):
        await submits.submit(job)
    assert counted.tries == before + 1
    proxy.let_pass()
    assert (await submits.submit(job)).created
    proxy.cut()
    before = counted.tries
    again = asyncio.create_task(submits.submit(submission()))
    await wait_until(lambda: counted.tries > before)
    proxy.let_pass()
    assert (await again).created, "another outage is bridged again"
    assert await pipe.command("ZCARD", KEYS.ready(0)) == 2
    await counted.close()


async def test_a_server_that_is_behind_but_answers_is_not_silent(brief: Pipe) -> None:
    """The last answer comes after more than the time-out, but something comes all the time."""
    assert await brief.command("PING") == b"PONG"
    number = round(1.4 * TIMEOUT_S * 1000 / BUSY_MS)
    asked = [brief.command("EVAL", BUSY, 0, b"x" * READ_BYTES) for _ in range(number)]
    assert set(await asyncio.gather(*asked)) == {1}


async def test_on_a_slow_network_jobs_run_once_each(far: Pipe, proxy: TcpProxy, pipe: Pipe) -> None:
    proxy.slow(DELAY_S)
    workers = [
        Consumer(far, url_of(proxy), pool=POOL, asking=Asking(f"w{n}"), limits=LIMITS) for n in range(3)
    ]
    jobs = [submission(service_class=ServiceClass.P1) for _ in range(40)]
    accepted = await asyncio.gather(*(Producer(far).submit(job) for job in (*jobs, *jobs)))
    assert sum(each.created for each in accepted) == len(jobs)
    ran = list[str]()

    async def work(worker: Consumer) -> None:
        while leases := (await worker.claim(5)).leases:
            ran.extend(lease.job_id for lease in leases)
            ends = [(lease, scripts.Ending(succeeded=True, data=b"{}")) for lease in leases]
            assert all(await worker.finish_many(ends))

    await asyncio.gather(*map(work, workers))
    assert sorted(ran) == sorted(job.job_id for job in jobs)
    assert {(await Producer(pipe).get(job.job_id)).status for job in jobs} == {"succeeded"}
    await asyncio.gather(*(worker.close() for worker in workers))


async def test_answers_are_not_mixed_up_by_awaits_that_were_cancelled_while_they_were_on_their_way(
    far: Pipe, proxy: TcpProxy, backdoor: Backdoor
) -> None:
    """Source: redis-py#2665. With scripts that are sent twice, errors, and connections that break in between."""
    rng = random.Random(11)
    wrong = list[object]()

    async def ask(number: int) -> None:
        text = b"%d" % number
        with contextlib.suppress(RedisAway):
            if number % 7 == 0:
                answer = await far.run(scripts.cancel(submission().job_id))
                wrong.extend([answer] if answer is not None else [])
            else:
                answer = await far.command("ECHO", text)
                wrong.extend([] if answer == text else [(text, answer)])

    for turn in range(25):
        proxy.slow(rng.uniform(0.001, 0.01))
        tasks = [asyncio.create_task(ask(turn * 100 + number)) for number in range(60)]
        await asyncio.sleep(rng.uniform(0.0, 0.015))
        for task in rng.sample(tasks, 30):
            task.cancel()
        if turn % 5 == 3:
            backdoor.ask("SCRIPT", "FLUSH")
        if turn % 5 == 4:
            proxy.cut()
            proxy.let_pass()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not wrong


async def test_what_was_refused_by_a_replica_works_when_it_is_the_master_again(
    pipe: Pipe, redis_url: str, backdoor: Backdoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is connected anew by hand: a pipe, a waiting worker, a heartbeat and a reader."""
    monkeypatch.setattr(producer, "SUBMIT_PATIENCE_S", 0.0)
    hub, link = ReplyHub(redis_url), ThreadLink(redis_url, key=KEYS.prefix, timeout_s=2.0)
    worker = Consumer(pipe, redis_url, pool=POOL, asking=Asking("w1"), limits=LIMITS)
    await hub.start()
    job = submission(stream=True)
    beat = scripts.renew(POOL, scripts.Beat("w1", b"{}", (), 10.0))
    await asyncio.to_thread(link.run, beat)
    backdoor.ask("REPLICAOF", "127.0.0.1", free_port())
    try:
        for refused in (Producer(pipe).submit(job), worker.claim(1)):
            with pytest.raises(RedisAway):
                await refused
        with pytest.raises(Exception, match="read only replica"):
            await worker.wait(0.01)
        with pytest.raises(Exception, match="read only replica"):
            await asyncio.to_thread(link.run, beat)
    finally:
        backdoor.ask("REPLICAOF", "NO", "ONE")
    await asyncio.to_thread(link.run, beat)
    await worker.wait(0.01)
    with hub.mailbox(job.job_id) as box:
        await Producer(pipe).submit(replace(job, reply_to=hub.address(job.job_id)))
        writer = Writer(worker, (await worker.claim(1)).leases[0])
        await writer.write(3)
        await writer.finish()
        assert payloads(await read(pipe, box)) == numbered(1, 1, 3)
    await hub.close()
    await worker.close()
    link.close()


async def test_a_master_that_has_lost_its_replicas_is_away_where_it_is_told_to_want_some(
    pipe: Pipe, backdoor: Backdoor
) -> None:
    """`min-replicas-to-write`: docs/durability.md."""
    await pipe.run(scripts.cancel(submission().job_id))
    backdoor.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        with pytest.raises(RedisAway):
            await pipe.run(scripts.enqueue(submission(), Producer(pipe)._order))
        with pytest.raises(RedisAway):
            await pipe.command("SET", "k", "v", "EX", 1)
    finally:
        backdoor.ask("CONFIG", "SET", "min-replicas-to-write", 0)
    assert (await Producer(pipe).submit(submission())).created


async def test_a_subscription_that_the_network_has_swallowed_is_made_anew_and_readers_miss_nothing(
    pipe: Pipe, proxy: TcpProxy, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells a reader that its connection is dead: it has to ask."""
    monkeypatch.setattr(ear, "SILENT_S", 0.05)
    hub = ReplyHub(url_of(proxy))
    await hub.start()
    async with hub.watch(writer.lease.job_id) as box:
        reading = asyncio.create_task(read(pipe, box))
        await writer.write(2)
        await wait_until(lambda: proxy.connections == 1)
        proxy.swallow()
        await writer.write(3)
        await writer.finish()
        assert payloads(await reading) == numbered(1, 1, 5)
    await wait_until(lambda: proxy.connections == 1, what="the dead connection is given up")
    await hub.close()


async def test_a_quiet_subscription_is_kept(
    proxy: TcpProxy, backdoor: Backdoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ear, "SILENT_S", 0.02)
    hub = ReplyHub(url_of(proxy))
    await hub.start()

    def subscribers() -> list[bytes]:
        rows = backdoor.ask("CLIENT", "LIST", "TYPE", "PUBSUB").splitlines()
        return [row.split()[0] for row in rows if b"cmd=ping" in row]

    def pings() -> int:
        return int(backdoor.ask("INFO", "commandstats")["cmdstat_ping"]["calls"])

    with hub.mailbox(submission().job_id):
        [first] = await wait_until(subscribers)
        before = pings()
        await wait_until(lambda: pings() > before + 3)
        assert subscribers() == [first]
    await hub.close()
