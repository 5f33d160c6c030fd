"""What a worker does with the first pass of a routed job: hands on what is not good enough, once, and charges both passes."""

from collections.abc import AsyncGenerator
from functools import partial

import pytest

from broker.connection import Pipe
from broker.ends import Ends, Who
from broker.heirs import Heirs, Plan
from broker.job import Status, heir_id, new_job_id
from broker.policy import Limits
from broker.producer import Producer
from predictor.estimator import SimpleEstimator
from tests.conditions import wait_until
from tests.workers.conftest import Maker, Rig, submission
from tests.workers.leases import lease
from tests.workers.pairs import JSON_ASKED, Pair, Starts, fails, says, start_pair, text_of
from tests.workers.scripted import ScriptedEngine, payload
from workers.engine import Delta, EngineBroken, EngineCall, EngineFailed, EngineRejected, Final


@pytest.fixture
def pair(worker: Maker) -> Starts:
    return partial(start_pair, worker)


BAD = {
    "length": says("and so on", finish="length"),
    "empty_answer": says(" "),
    "repetition": says("over and over again, as I said, " * 40),
    "engine_error": fails(EngineFailed("it broke")),
    "engine_rejected": fails(EngineRejected(400, b'{"error":"too long for me"}')),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("why", BAD)
async def test_each_kind_of_failure_is_handed_on_once_and_the_large_ones_answer_counts(
    pair: Starts, why: str, stream: bool
) -> None:
    workers: Pair = await pair(BAD[why])
    job_id = await workers.submit(stream=stream)
    job = await workers.ended(job_id)
    assert (job.status, text_of(job), job.pool) == (Status.SUCCEEDED, "from the large one", "large")
    assert job.first is not None
    assert (job.first.job_id, job.first.why) == (job_id, why)
    assert workers.large.engine.seen == [job.job_id]


async def test_end_is_noted_where_the_answer_is(pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    job = await workers.ended(await workers.submit(notify="l"))
    ends = Ends(workers.small.pipe, Who.LIMITS)
    assert await ends.look(["small", "large"]) == [job.job_id]
    assert job.pool == "large"
    await ends.drop([job.job_id])


async def test_a_connection_sees_nothing_of_a_pass_that_was_handed_on(pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    job_id = await workers.submit(stream=True, attached=True)
    job = await workers.ended(job_id)
    assert job.first is not None
    assert await workers.small.pipe.command("XLEN", f"hw:{{small}}:out:{job_id}") == 0
    assert await workers.small.pipe.command("XLEN", f"hw:{{large}}:out:{job.job_id}") > 0


@pytest.mark.parametrize("chunk", [b'{"choices":[{"index":[1],"delta":"x"}]}', b'{"choices":7}', b"[]"])
async def test_an_answer_that_is_none_is_the_engines_failure_and_handed_on(
    pair: Starts, chunk: bytes
) -> None:
    async def garbled(_: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        yield Delta(chunk, 1)
        yield Final(b"", None, "stop")

    workers: Pair = await pair(garbled)
    job = await workers.ended(await workers.submit(stream=True))
    assert (job.status, job.pool) == (Status.SUCCEEDED, "large")
    assert job.first is not None
    assert job.first.why in ("engine_error", "empty_answer")


async def test_what_a_connection_has_seen_is_not_begun_again_in_the_large_pool(pair: Starts) -> None:
    async def breaks(_: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        yield Delta(payload("Once upon"), 1)
        raise EngineBroken("the engine died")

    workers: Pair = await pair(breaks)
    job = await workers.ended(await workers.submit(stream=True, attached=True))
    assert (job.status, job.first) == (Status.FAILED, None)
    assert workers.large.engine.seen == []


async def test_text_where_json_was_asked_for_is_handed_on_and_json_is_not(
    pair: Starts,
) -> None:
    workers: Pair = await pair(says("Sure! Here you are."))
    job = await workers.ended(await workers.submit(body=JSON_ASKED))
    assert job.first is not None
    assert job.first.why == "invalid_json"
    workers.small.engine.script = says('{"a": 1}')
    job = await workers.ended(await workers.submit(body=JSON_ASKED))
    assert (job.first, text_of(job)) == (None, '{"a": 1}')


async def test_an_answer_cut_where_the_caller_said_so_is_good(pair: Starts) -> None:
    workers: Pair = await pair(says("and so on", finish="length"))
    job = await workers.ended(await workers.submit(body=b'{"messages":[],"max_tokens":3}'))
    assert (job.first, text_of(job)) == (None, "and so on")


async def test_a_job_without_a_successor_is_judged_by_nobody(pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    job = await workers.ended(await workers.small.submit(stream=False))
    assert (job.status, job.first) == (Status.SUCCEEDED, None)


async def test_where_nobody_serves_the_large_pool_the_small_ones_answer_stands(worker: Maker) -> None:
    small = await worker(ScriptedEngine(says(" ")))
    job = await small.ended(await Pair(small, small).submit())
    assert (job.status, job.first, job.pool) == (Status.SUCCEEDED, None, "small")


async def test_an_answer_is_kept_if_the_large_pool_would_come_too_late(pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    await workers.small.pipe.command("HSET", "hw:{large}:stats", "queued_ms:0", 10_000_000)
    job = await workers.ended(await workers.submit(deadline_s=30.0))
    assert (job.status, job.first) == (Status.SUCCEEDED, None)


async def test_both_passes_are_charged(pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    job = await workers.ended(await workers.submit())
    assert job.first is not None
    assert job.first.usage["prompt_tokens"] == job.usage["prompt_tokens"] == 5


async def test_the_deadline_is_the_one_that_is_left(pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    job = await workers.ended(await workers.submit(deadline_s=50.0))
    assert job.first is not None
    assert abs(job.deadline - job.first.deadline) < 0.1


async def test_tokens_of_the_successor_are_higher_so_that_readers_see_a_new_beginning(
    pair: Starts,
) -> None:
    workers: Pair = await pair(says(" "))
    job = await workers.ended(await workers.submit())
    assert job.first is not None
    pipe = workers.small.pipe
    tokens = [
        int(await pipe.command("HGET", f"hw:{{{each.pool}}}:job:{each.job_id}", "token"))
        for each in (job.first, job)
    ]
    assert tokens == sorted(tokens)
    assert tokens[0] < tokens[1]


async def let_in(rig: Rig, job_id: str) -> None:
    """A held job, as if its time had come: `feed` takes none that was tried before."""
    await rig.pipe.command("ZADD", "hw:{small}:delayed", "XX", 0, job_id)
    await rig.pipe.command("ZADD", "hw:{small}:marker", 0, "work")


async def test_a_worker_that_dies_between_the_steps_leaves_a_job_that_the_next_one_hands_on(
    pair: Starts,
) -> None:
    """The successor is queued, the job is not marked: as an earlier attempt left it."""
    workers: Pair = await pair(says("a good answer that must not count"))
    small = workers.small
    job_id = new_job_id("small")
    heir = heir_id(job_id, "large")
    await small.producer.submit(submission(job_id=heir, stream=False))
    held = submission(job_id=job_id, stream=False, heir=heir, plan=str(Plan()), hold_s=60.0)
    await small.producer.submit(held)
    await small.pipe.command("HSET", f"hw:{{small}}:job:{job_id}", "attempts", 1)
    await let_in(small, job_id)
    ended = await workers.ended(job_id)
    assert (ended.job_id, text_of(ended)) == (heir, "from the large one")
    assert workers.large.engine.seen == [heir]
    assert small.engine.seen == []


async def died_often(workers: Pair, *, deaths: int) -> str:
    """A job that `deaths` workers have died of, and that waits for the next one."""
    job_id = new_job_id("small")
    held = submission(
        job_id=job_id, stream=False, heir=heir_id(job_id, "large"), plan=str(Plan()), hold_s=60.0
    )
    await workers.small.producer.submit(held)
    counts = ("attempts", deaths, "deaths", deaths)
    await workers.small.pipe.command("HSET", f"hw:{{small}}:job:{job_id}", *counts)
    await let_in(workers.small, job_id)
    return job_id


@pytest.mark.parametrize(
    ("deaths", "pool"), [(Limits().max_deaths, "large"), (Limits().max_deaths - 1, "small")]
)
async def test_a_job_whose_next_death_would_be_the_last_goes_to_the_large_pool(
    pair: Starts, deaths: int, pool: str
) -> None:
    workers: Pair = await pair(says("from the small one"))
    job = await workers.ended(await died_often(workers, deaths=deaths))
    assert (job.pool, text_of(job)) == (pool, f"from the {pool} one")
    assert workers.small.engine.seen == ([] if pool == "large" else [job.job_id])
    if job.first is not None:
        assert job.first.why == "worker_died"


async def test_a_job_that_workers_died_of_is_tried_again_where_nobody_else_could(worker: Maker) -> None:
    small = await worker(ScriptedEngine(says("from the small one")))
    job = await small.ended(await died_often(Pair(small, small), deaths=Limits().max_deaths))
    assert (job.status, job.pool, job.first) == (Status.SUCCEEDED, "small", None)


async def test_a_job_that_was_cancelled_meanwhile_takes_its_successor_along(redis_url: str) -> None:
    pipe = Pipe(redis_url)
    producer = Producer(pipe)
    heirs = Heirs(pipe, producer, forecast=SimpleEstimator().forecast)
    job_id = new_job_id("small")
    heir = heir_id(job_id, "large")
    await producer.submit(submission(job_id=job_id, heir=heir, plan=str(Plan())))
    await producer.submit(submission(job_id=heir))
    await producer.cancel(job_id)
    await heirs.undo(lease(job_id, heir=heir, plan=str(Plan())))
    assert (await producer.get(heir)).status is Status.CANCELLED
    await pipe.close()


async def test_cancelling_a_job_that_was_handed_on_cancels_its_successor(
    pair: Starts,
) -> None:
    workers: Pair = await pair(says(" "))
    workers.large.puller.heed("pause")
    job_id = await workers.submit()

    async def is_handed_on() -> bool:
        return (await workers.small.producer.get(job_id)).first is not None

    await wait_until(is_handed_on, what="the job is handed on")
    assert await workers.small.producer.cancel(job_id) is Status.CANCELLED
    job = await workers.ended(job_id)
    assert (job.status, job.pool) == (Status.CANCELLED, "large")
