"""What a worker puts into the books: every attempt, however it ended, once; and of the engine's time exactly what it ran."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import pytest

from broker import accounts
from broker.accounts import Book, Used
from broker.connection import Pipe
from broker.errors import RedisAway
from broker.fleet import look
from broker.job import ServiceClass, Status
from broker.script import Call
from tests.conditions import wait_until
from tests.workers.conftest import POOL, Maker, Rig
from tests.workers.leases import lease
from tests.workers.scripted import ScriptedEngine, answer, payload
from workers.accounts import Accounts, Price
from workers.engine import (
    CHAT,
    COMPLETIONS,
    Delta,
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineRejected,
    Final,
    Usage,
)
from workers.pace import Pace
from workers.sight import BusyClock, Seen, Sight

NINE = b'{"messages":[],"prompt":[1,2,3,4,5,6,7,8,9]}'  # token ids
PRICE = Price(gpus=2, gpu_hour_usd=1.8)
Script = Callable[[EngineCall], AsyncGenerator[Delta | Final, None]]


@dataclass
class Bookkeeping:
    rig: Rig
    accounts: Accounts

    async def book(self, *, attempts: int) -> Book:
        """The pool's totals, once so many attempts are in them."""

        async def look() -> Book | None:
            await self.accounts.flush()
            found = (await accounts.totals(self.rig.pipe, [POOL]))[POOL]
            return found if found.all_used.attempts >= attempts else None

        found: Book = await wait_until(look, what=f"{attempts} attempts are in the books")
        assert found.all_used.attempts == attempts
        return found


async def keep(
    worker: Maker, script: Script = answer, *, clock: Callable[[], float] = time.monotonic
) -> Bookkeeping:
    pipe = Pipe(worker.url)
    worker.stack.push_async_callback(pipe.close)
    books = Accounts(pipe, worker_id="w1", price=PRICE, pace=Pace)
    sight, engine = Sight(books, clock=clock), ScriptedEngine(script)
    rig = await worker(ScriptedEngine(sight.watch(engine).generate), observers=(sight,))
    return Bookkeeping(rig, books)


async def writing(_: EngineCall) -> AsyncGenerator[Delta | Final, None]:
    """A chat's opening and four tokens, and then it never ends."""
    for text in ("", "a", "b", "c", "d"):
        yield Delta(payload(text), 1)
    await asyncio.Event().wait()


async def test_a_finished_job_is_booked_with_its_tokens_times_and_price(worker: Maker) -> None:
    kept = await keep(worker)
    await kept.rig.ended(await kept.rig.submit(tenant="acme", service_class=ServiceClass.P1))
    book = await kept.book(attempts=1)
    [(place, used)] = book.used.items()
    assert place == ("acme", ServiceClass.P1)
    assert (used.requests, used.prompt_tokens, used.output_tokens, used.cached_tokens) == (1, 5, 3, 2)
    assert used.gpu_us > 0
    assert used.nano_usd == pytest.approx(
        used.gpu_us * 1.8 / 3.6, abs=2
    )  # 1.8 $/h: half a nano-dollar a microsecond
    assert {what for what, _ in book.times} == {"wait", "ttft", "tpot", "e2e"}
    assert book.time("wait").sum_s <= book.time("ttft").sum_s <= book.time("e2e").sum_s
    assert (await look(kept.rig.pipe, POOL)).prefix_hit_share == 0.4


async def test_a_cancelled_job_is_booked_with_what_was_written_until_then(worker: Maker) -> None:
    kept = await keep(worker, writing)
    job_id = await kept.rig.submit(body=NINE)
    await wait_until(
        lambda: job_id in kept.rig.puller.ledger._held and kept.rig.puller.ledger._held[job_id].output == 5
    )
    await kept.rig.producer.cancel(job_id)
    book = await kept.book(attempts=1)
    used = book.all_used
    assert (used.requests, used.prompt_tokens, used.output_tokens, used.cached_tokens) == (1, 9, 4, 0)
    assert used.gpu_us > 0
    assert {what for what, _ in book.times} == {"wait"}


async def test_a_job_that_was_cut_before_its_first_token_has_used_no_tokens_but_time(worker: Maker) -> None:
    async def reading(_: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        await asyncio.Event().wait()
        yield Delta(b"", 1)

    kept = await keep(worker, reading)
    job_id = await kept.rig.submit()
    await wait_until(lambda: kept.rig.engine.seen == [job_id])
    await kept.rig.producer.cancel(job_id)
    used = (await kept.book(attempts=1)).all_used
    assert (used.prompt_tokens, used.output_tokens) == (0, 0)
    assert used.gpu_us > 0


async def test_each_attempt_is_booked_and_the_job_counts_as_one_request(worker: Maker) -> None:
    tries = iter((EngineBroken("it died"), EngineBusy("full", retry_after_s=0.01), None))

    async def third_time_lucky(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        error = next(tries)
        if error is None:
            async for item in answer(call):
                yield item
            return
        for text in ("", "a", "b") if isinstance(error, EngineBroken) else ():
            yield Delta(payload(text), 1)
        raise error

    kept = await keep(worker, third_time_lucky)
    await kept.rig.ended(await kept.rig.submit(body=NINE))
    book = await kept.book(attempts=3)
    used = book.all_used
    assert (used.requests, used.prompt_tokens, used.output_tokens) == (1, 9 + 0 + 5, 2 + 0 + 3)
    assert (book.time("wait").count, book.time("e2e").count) == (1, 1)


async def test_what_the_engine_would_not_take_costs_nothing_and_what_it_refused_has_no_tokens(
    worker: Maker,
) -> None:
    async def refuse(_: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        raise EngineRejected(400, b'{"error":"no"}')
        yield  # a generator that raises at once

    kept = await keep(worker, refuse)
    assert (await kept.rig.ended(await kept.rig.submit())).status is Status.FAILED
    used = (await kept.book(attempts=1)).all_used
    assert (used.requests, used.prompt_tokens, used.output_tokens) == (1, 0, 0)


async def test_overlapping_jobs_share_the_engines_time_and_together_take_all_of_it(worker: Maker) -> None:
    """Two long jobs and one short one after the other beside them, at each of which a second passes; then the long ones end."""
    go, now = asyncio.Event(), [0.0]

    async def timed(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        if call.body["messages"] == ["long"]:
            await go.wait()
        now[0] += 1
        async for item in answer(call):
            yield item

    kept = await keep(worker, timed, clock=lambda: now[0])
    long = [await kept.rig.submit(tenant=name, body=b'{"messages":["long"]}') for name in ("a", "b")]
    await wait_until(lambda: len(kept.rig.engine.seen) == 2)
    for _ in range(6):
        await kept.rig.ended(await kept.rig.submit(tenant="short"))
    go.set()
    for job_id in long:
        await kept.rig.ended(job_id)
    book = await kept.book(attempts=8)
    assert now[0] == 8
    assert book.all_used.gpu_us == pytest.approx(2 * 8_000_000, abs=8)  # two GPUs
    assert book.used["short", ServiceClass.P0].gpu_s == pytest.approx(2 * 6 / 3)


def test_the_busy_clock_shares_each_moment_among_the_slots_in_use() -> None:
    """By hand: one slot for 2 s, then three (a job of two choices joins) for 3 s, then two for 4 s; 10 s idle."""
    clock = BusyClock()
    one = clock.turn(1, now=10.0)
    two = clock.turn(2, now=12.0)
    share_of_one = clock.turn(-1, now=15.0) - one
    share_of_two = 2 * (clock.turn(-2, now=19.0) - two)
    assert share_of_one == pytest.approx(2 + 3 / 3)
    assert share_of_two == pytest.approx(2 * (3 / 3 + 4 / 2))
    assert share_of_one + share_of_two == pytest.approx(9)
    assert clock.turn(1, now=29.0) == pytest.approx(5)


class Forgetful:
    """A Redis whose answers get lost: what was asked is done."""

    def __init__(self, pipe: Pipe, *, loses: int) -> None:
        self._pipe = pipe
        self._loses = loses

    async def run(self, call: Call) -> object:
        found = await self._pipe.run(call)
        self._loses -= 1
        if self._loses >= 0:
            raise RedisAway("the answer is lost")
        return found

    async def command(self, *command: str | int) -> object:
        return await self._pipe.command(*command)


def ended(*, count: int, attempt: int = 1) -> Sequence[Seen]:
    """Attempts that have written seven tokens each."""
    call = EngineCall("j", CHAT, {"messages": []}, stream=True)
    final = Final(b"", Usage(5, 7, 0), "stop")
    jobs = (lease(f"job_{n:026d}.{POOL}", attempt=attempt) for n in range(count))
    return [Seen(each, 0, 0.0, call, first=1.0, ended=2.0, final=final, share_s=0.5) for each in jobs]


def booked(pipe: object, *, seen: Sequence[Seen] = ()) -> Accounts:
    books = Accounts(pipe, worker_id="w1", price=PRICE, pace=Pace)  # type: ignore[arg-type]
    for each in seen:
        books.saw(each, "succeeded")
    return books


async def test_a_flush_whose_answer_was_lost_counts_once_and_later_ends_count_too(pipe: Pipe) -> None:
    books = booked(Forgetful(pipe, loses=2), seen=ended(count=3))
    for _ in range(2):
        await books.flush()
        books.saw(ended(count=1)[0], "succeeded")
    await books.flush()
    assert (await accounts.totals(pipe, [POOL]))[POOL].all_used == Used(5, 5, 25, 35, 0, 5_000_000, 2_500_000)


async def test_a_flush_that_is_refused_for_good_is_lost_alone(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    books = booked(pipe, seen=ended(count=1))
    books._pages[POOL].waiting["t", "gpu_us|0|t"] = 2**64
    await books.flush()
    assert "are lost, as they cannot be added" in caplog.text
    books.saw(ended(count=1)[0], "succeeded")
    await books.flush()
    assert (await accounts.totals(pipe, [POOL]))[POOL].all_used == Used(1, 1, 5, 7, 0, 1_000_000, 500_000)


async def test_a_worker_that_begins_anew_counts_from_one_again_under_its_new_name(pipe: Pipe) -> None:
    """Also: what the killed one had not flushed is gone, and nothing else: a job that ends in its second attempt is a request."""
    first = booked(pipe, seen=ended(count=2))
    await first.flush()
    first.saw(ended(count=1)[0], "succeeded")
    second = Accounts(pipe, worker_id="w2", price=PRICE, pace=Pace)
    second.saw(ended(count=1, attempt=2)[0], "succeeded")
    await second.flush()
    used = (await accounts.totals(pipe, [POOL]))[POOL].all_used
    assert (used.requests, used.attempts, used.output_tokens) == (3, 3, 21)


async def test_many_sums_go_in_several_flushes(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MOST_SUMS", 5)
    await booked(pipe, seen=ended(count=3)).flush()
    assert (await accounts.totals(pipe, [POOL]))[POOL].all_used.output_tokens == 21
    assert int(await pipe.command("GET", f"hw:{{{POOL}}}:flushed:w1")) > 2


@pytest.mark.parametrize(("after_s", "tokens"), [(0.01, (0, 0)), (1.25, (1600, 40))])
async def test_an_answer_that_was_to_come_whole_is_believed_to_have_grown_at_the_engines_pace(
    pipe: Pipe, after_s: float, tokens: tuple[int, int]
) -> None:
    """A prompt of 1,600 tokens takes 0.05 s + 0.2 s by the pace that is assumed at first, and then 40 tokens a second come."""
    books, call = booked(pipe), EngineCall("j", COMPLETIONS, {"prompt": [0] * 1600}, stream=False)
    cut = lease(f"job_{0:026d}.{POOL}")
    books.saw(Seen(cut, 0, 0.0, call, began=5.0, left=5.0 + after_s), "lost")
    await books.flush()
    used = (await accounts.totals(pipe, [POOL]))[POOL].all_used
    assert (used.prompt_tokens, used.output_tokens) == tokens


async def test_how_fast_the_engine_reads_is_told_by_long_prompts_only(pipe: Pipe) -> None:
    """1,500 tokens, of which 300 were cached, in 0.6 s: half a second for a thousand."""
    books, (long, short) = booked(pipe), ended(count=2)
    for seen, prompt_tokens in ((long, 1500), (short, 1300)):
        seen.final, seen.began, seen.first = Final(b"", Usage(prompt_tokens, 7, 300), "stop"), 0.4, 1.0
        books.saw(seen, "succeeded")
    await books.flush()
    reading = (await accounts.totals(pipe, [POOL]))[POOL].reading
    assert reading.count == 1
    assert reading.sum_s == pytest.approx(0.5)
