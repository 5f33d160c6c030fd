"""A worker whose Redis goes away while its engine goes on: it keeps what it has, and gives up in time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import orjson
import pytest

from broker import fleet, scripts
from broker.connection import Pipe
from broker.job import Status
from broker.keys import PoolKeys
from broker.policy import Limits
from broker.producer import Producer
from tests.conditions import wait_until
from tests.tcp_proxy import TcpProxy
from tests.workers.conftest import POOL, Maker, submission
from tests.workers.scripted import ScriptedEngine, payload
from workers.engine import Delta, EngineCall, Final, Usage

CONNECTIONS = 4  # scripts, the wait for work, the heartbeat, aborts


@pytest.fixture
async def far(proxy: TcpProxy) -> AsyncIterator[Maker]:
    """Workers beyond the proxy."""
    maker = Maker(f"redis://127.0.0.1:{proxy.port}/0")
    async with maker.stack:
        yield maker
        proxy.let_pass()


@dataclass
class Slow:
    """Says its name: a first word, and the rest when it may."""

    name: str
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def script(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        if call.stream:
            yield Delta(payload(self.name), 1)
        await self.may_end.wait()
        if call.stream:
            yield Delta(payload(" ends"), 1)
            yield Delta(payload(".", finish="stop"), 1)
            yield Final(b"", Usage(5, 3, 0), "stop")
        else:
            yield Final(orjson.dumps({"choices": [], "by": self.name}), Usage(5, 3, 0), "stop")


async def ended(pipe: Pipe, job_id: str) -> bytes:
    """The answer."""

    async def look() -> bool:
        return (await Producer(pipe).get(job_id)).status.terminal

    await wait_until(look)
    view = await Producer(pipe).get(job_id)
    assert view.status is Status.SUCCEEDED
    return view.result or b""


@pytest.mark.parametrize("trouble", ["cut", "stall", "slow"])
async def test_what_ends_during_an_outage_is_delivered_after_it(
    far: Maker, proxy: TcpProxy, pipe: Pipe, trouble: str
) -> None:
    slow, other = Slow("first"), submission()
    engine = ScriptedEngine(slow.script)
    rig = await far(engine)
    jobs = [submission(), submission(stream=False)]
    await Producer(pipe).submit_many(jobs)
    await wait_until(lambda: len(engine.seen) == 2)
    await wait_until(lambda: proxy.connections == CONNECTIONS)
    proxy.slow(0.03) if trouble == "slow" else getattr(proxy, trouble)()
    slow.may_end.set()
    await wait_until(lambda: not engine._now, what="the engine is done")
    proxy.let_pass()
    streamed, whole = [orjson.loads(await ended(pipe, job.job_id)) for job in jobs]
    assert streamed["choices"][0]["message"]["content"] == "first ends."
    assert whole["by"] == "first"
    await Producer(pipe).submit(other)
    await ended(pipe, other.job_id)
    assert sorted(engine.seen) == sorted(job.job_id for job in (*jobs, other)), "each ran once"
    assert rig.puller.ledger.busy == 0
    rig.heartbeat.beat_soon()  # else a third of a lease later
    await wait_until(lambda: proxy.connections == CONNECTIONS, what="no connection of before is left")


async def test_past_the_lease_the_worker_gives_up_and_another_one_gives_the_answer(
    far: Maker, worker: Maker, proxy: TcpProxy, pipe: Pipe
) -> None:
    limits = Limits(lease_s=0.6)
    first, second, job = Slow("first"), Slow("second"), submission()
    lost, there = ScriptedEngine(first.script), ScriptedEngine(second.script)
    rig = await far(lost, limits=limits)
    await Producer(pipe).submit(job)
    await wait_until(lambda: lost.seen)
    proxy.cut()
    await worker(there, limits=limits)

    async def taken_over() -> bool:
        await pipe.run(scripts.reap(POOL, limits, every_s=0.01))
        return bool(there.seen)

    await wait_until(taken_over)
    assert lost.aborted == [job.job_id], "it has stopped before Redis gave the job away"
    second.may_end.set()
    first.may_end.set()
    answer = orjson.loads(await ended(pipe, job.job_id))
    assert answer["choices"][0]["message"]["content"] == "second ends."
    proxy.let_pass()
    await wait_until(lambda: rig.puller.ledger.busy == 0)
    assert lost.seen == there.seen == [job.job_id]


async def test_a_worker_whose_record_has_expired_meanwhile_says_at_once_that_it_lives(
    far: Maker, proxy: TcpProxy, pipe: Pipe
) -> None:
    """And not only with its next beat in turn, which would be 20 s later here."""
    rig = await far(ScriptedEngine(), limits=Limits(lease_s=60.0))

    async def known() -> bool:
        return bool((await fleet.look(pipe, POOL)).workers)

    await wait_until(known)
    proxy.cut()
    rig.heartbeat.beat_soon()
    await wait_until(lambda: rig.heartbeat._away)
    await pipe.command("DEL", PoolKeys(POOL).worker(rig.worker_id))
    assert not await known()
    proxy.let_pass()
    await wait_until(known)


async def test_an_answer_of_a_lease_that_was_given_away_meanwhile_is_refused(
    far: Maker, worker: Maker, proxy: TcpProxy, pipe: Pipe
) -> None:
    """The worker trusts its lease and delivers late; Redis has another clock."""
    first, second, job = Slow("first"), Slow("second"), submission()
    late, there = ScriptedEngine(first.script), ScriptedEngine(second.script)
    rig = await far(late)
    await Producer(pipe).submit(job)
    await wait_until(lambda: late.seen)
    proxy.cut()
    first.may_end.set()
    await wait_until(lambda: not late._now)
    await pipe.command("ZADD", PoolKeys(POOL).named("leases"), "XX", 1, job.job_id)
    await pipe.run(scripts.reap(POOL, Limits(), every_s=0.01))
    await worker(there)
    await wait_until(lambda: there.seen)
    proxy.let_pass()
    await wait_until(lambda: rig.puller.ledger.busy == 0, what="the first has let go")
    second.may_end.set()
    answer = orjson.loads(await ended(pipe, job.job_id))
    assert answer["choices"][0]["message"]["content"] == "second ends."
