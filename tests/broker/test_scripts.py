"""How commands are put together: sources, hashes, units, and what a job's keys outlive."""

import hashlib

import pytest

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.policy import Asking, Limits, Order, Room
from broker.producer import Producer
from broker.script import script
from broker.scripts import Beat, Ending, Return
from tests.broker.jobs import KEYS, POOL, Backdoor, submission


def test_sha_is_the_one_that_redis_computes(backdoor: Backdoor) -> None:
    for name in ("claim", "finish", "reap"):
        loaded = script(name)
        assert backdoor.ask("SCRIPT", "LOAD", loaded.source).decode() == loaded.sha
        assert hashlib.sha1(loaded.source, usedforsecurity=False).hexdigest() == loaded.sha


def test_parts_come_before_what_uses_them() -> None:
    source = script("release").source.decode()
    places = [
        source.index(f"local function {name}(") for name in ("now_ms", "tell", "settle", "requeue", "bury")
    ]
    assert places == sorted(places)


def test_seconds_become_whole_milliseconds() -> None:
    call = scripts.enqueue(
        submission(deadline_s=1.2345, hold_s=0.5, retain_s=2.0), Order(priority_step_s=2.0)
    )
    assert call.args[4:6] == (1234, 500)
    assert call.args[call.args.index("retain") + 1] == 2000


def test_eval_sends_the_same_keys_and_arguments() -> None:
    call = scripts.claim(POOL, Asking("w1", 1.0), room=Room(2))
    assert call.evalsha()[0] == "EVALSHA"
    assert call.eval()[0] == "EVAL"
    assert call.evalsha()[2:] == call.eval()[2:] == (4, *call.keys, *call.args)
    assert call.args[:3] == ("w1", 2, 1000)


def test_unlisted_job_is_not_put_into_the_index() -> None:
    assert scripts.enqueue(submission(listed=False), Order(index_cap=7)).args[6] == 0
    assert scripts.enqueue(submission(listed=True), Order(index_cap=7)).args[6] == 7


@pytest.mark.parametrize("end", ["finish", "fail", "cancel", "dead", "expire"])
async def test_ended_job_leaves_nothing_without_a_ttl(
    pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor, end: str
) -> None:
    """Also with the shortest retention there can be, where keys may be gone before the script ends."""
    await producer.submit(submission(retain_s=0.0, stream=True))
    [lease] = (await worker.claim(1)).leases
    await worker.append([Chunk(lease.job_id, lease.token, 1, b"{}")])
    if end in ("finish", "fail"):
        await worker.finish(lease, Ending(succeeded=end == "finish", data=b"{}"))
    elif end == "cancel":
        await producer.cancel(lease.job_id)
    elif end == "dead":
        given = Return("error", error=b"{}")
        assert (
            await pipe.run(
                scripts.release(lease.job_id, lease.token, given=given, limits=Limits(max_errors=0))
            )
            == 2
        )
    else:
        backdoor.pass_deadline(lease.job_id)
        await worker.reap()
    assert not [key for key in backdoor.keys_without_ttl() if lease.job_id in key]
    assert backdoor.members("leases") == backdoor.members("deadlines") == []


async def test_index_keeps_the_newest(pipe: Pipe, backdoor: Backdoor) -> None:
    jobs = [submission(listed=True) for _ in range(5)]
    for job in jobs:
        await pipe.run(scripts.enqueue(job, Order(index_cap=3)))
    assert sorted(backdoor.members("index")) == sorted(job.job_id for job in jobs)[-3:]


async def test_history_keeps_the_last_twenty_attempts(
    pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    job = submission()
    await producer.submit(job)
    for number in range(25):
        [lease] = (await worker.claim(1)).leases
        given = Return("error", error=b"%d" % number)
        await pipe.run(scripts.release(job.job_id, lease.token, given=given, limits=Limits(max_errors=100)))
    assert [attempt.error for attempt in await producer.history(job.job_id)] == list(range(5, 25))


async def test_worker_record_lives_for_less_than_two_leases(pipe: Pipe, backdoor: Backdoor) -> None:
    await pipe.run(scripts.renew(POOL, Beat("w1", b"{}", (), 10.0)))
    assert 10_000 < backdoor.ask("PTTL", KEYS.worker("w1")) <= 20_000
