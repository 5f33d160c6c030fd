"""Recovery of what nobody else will recover: leases of dead workers, deadlines, retries that are due, old entries."""

import asyncio
import contextlib

import orjson
import pytest

import broker.reaper
from broker import notable, scripts
from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.job import Lease, Status, Submission
from broker.producer import Producer
from broker.reaper import reap_forever
from broker.scripts import Beat, Return
from tests.broker.jobs import ERROR, KEYS, LIMITS, LONG_AGO, POOL, Backdoor, submission
from tests.conditions import wait_until


async def leased(producer: Producer, worker: Consumer, job: Submission) -> Lease:
    await producer.submit(job)
    [lease] = (await worker.claim(1)).leases
    return lease


async def die(worker: Consumer, backdoor: Backdoor, job_id: str) -> list[int]:
    backdoor.end_lease(job_id)
    backdoor.let_reap()
    return await worker.reap()


async def test_job_of_a_dead_worker_goes_back_to_its_place(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    first = await leased(producer, worker, submission())
    await producer.submit(submission())
    assert await die(worker, backdoor, first.job_id) == [1, 0, 0]
    [again] = (await worker.claim(1)).leases
    assert (again.job_id, again.attempt) == (first.job_id, 2)
    assert again.token > first.token


async def test_lease_that_is_not_over_is_left_alone(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await leased(producer, worker, submission())
    assert await worker.reap() == [0, 0, 0]
    assert backdoor.members("leases") == [lease.job_id]


async def test_job_that_kills_its_workers_is_buried_with_its_history(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    """Past the limit: `max_deaths` deaths are survived, the next one is not."""
    lease = await leased(producer, worker, submission())
    for _ in range(LIMITS.max_deaths):
        await die(worker, backdoor, lease.job_id)
        [lease] = (await worker.claim(1)).leases
    await die(worker, backdoor, lease.job_id)
    assert await producer.dead(POOL) == [lease.job_id]
    shown = await producer.get(lease.job_id)
    assert (shown.status, shown.deaths, shown.errors) == (Status.FAILED, LIMITS.max_deaths + 1, 0)
    assert shown.error is not None
    assert orjson.loads(shown.error)["code"] == "worker_died"
    ends = [(each.worker, each.ended) for each in await producer.history(lease.job_id)]
    assert ends == [("w1", "death")] * shown.deaths
    await is_shown_as_failed(worker, lease)


async def test_death_after_the_first_byte_fails_what_a_connection_waits_for(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await leased(producer, worker, submission(attached=True, stream=True))
    await worker.append([Chunk(lease.job_id, lease.token, 1, b"{}")])
    await die(worker, backdoor, lease.job_id)
    assert (await producer.get(lease.job_id)).status is Status.FAILED
    assert await producer.dead(POOL) == []
    await is_shown_as_failed(worker, lease)


async def is_shown_as_failed(worker: Consumer, lease: Lease) -> None:
    """On the live page: nobody but the reaper can tell of it."""
    _, [failed] = await notable.recent(worker._pipe, [POOL], most=10)
    assert (failed.job_id, failed.worker, failed.outcome) == (lease.job_id, "w1", "failed")
    assert failed.service_class == lease.service_class.name
    assert 0 <= failed.wait_s <= failed.total_s


@pytest.mark.parametrize("state", ["ready", "held", "retrying", "running"])
async def test_deadline_ends_a_job_wherever_it_is(
    producer: Producer, worker: Consumer, backdoor: Backdoor, state: str
) -> None:
    job = submission(hold_s=100.0 if state == "held" else 0.0)
    await producer.submit(job)
    if state in ("retrying", "running"):
        [lease] = (await worker.claim(1)).leases
        if state == "retrying":
            await worker.release(lease, Return("error", delay_s=100.0, error=ERROR))
    backdoor.pass_deadline(job.job_id)
    assert await worker.reap() == [0, 0, 1]
    assert (await producer.get(job.job_id)).status is Status.EXPIRED
    for name in ("ready:0", "delayed", "leases", "deadlines"):
        assert backdoor.members(name) == []


async def test_running_job_that_is_too_late_is_aborted(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await leased(producer, worker, submission())
    backdoor.pass_deadline(lease.job_id)
    with backdoor.hear(KEYS.control) as heard:
        await worker.reap()
        assert heard() == f"abort {lease.job_id} {lease.token}".encode()


async def test_late_job_is_expired_when_claim_comes_across_it(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    job = submission()
    await producer.submit(job)
    backdoor.pass_deadline(job.job_id)
    assert (await worker.claim(1)).leases == []
    assert (await producer.get(job.job_id)).status is Status.EXPIRED


async def test_retries_that_are_due_wake_a_worker(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await leased(producer, worker, submission())
    await worker.release(lease, Return("error", delay_s=100.0, error=ERROR))
    backdoor.ask("DEL", KEYS.named("marker"))
    backdoor.end_delay(lease.job_id)
    assert await worker.reap() == [0, 1, 0]
    assert backdoor.members("ready:0") == [lease.job_id]
    assert backdoor.members("marker") == ["work"]


async def test_reap_is_bounded(pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor) -> None:
    jobs = [submission() for _ in range(7)]
    await producer.submit_many(jobs)
    for job in jobs:
        backdoor.pass_deadline(job.job_id)
    counts: list[int] = []
    while not counts or counts[-1]:
        backdoor.let_reap()
        counts.append((await pipe.run(scripts.reap(POOL, LIMITS, limit=3)))[2])
    assert counts == [3, 3, 1, 0]


async def test_one_process_reaps_at_a_time(producer: Producer, worker: Consumer) -> None:
    reports = await asyncio.gather(*(worker.reap() for _ in range(5)))
    assert sorted(map(len, reports)) == [0, 0, 0, 0, 3]


async def test_old_entries_of_the_lists_go(
    pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    """Of workers that stopped beating, of jobs whose records are gone, of dead letters past their keeping."""
    await producer.submit(submission(listed=True))
    await pipe.run(scripts.renew(POOL, Beat("w1", b"{}", (), 10.0)))
    for name in ("index", "dead", "workers"):
        backdoor.ask("ZADD", KEYS.named(name), LONG_AGO, "gone")
    await worker.reap()
    assert "gone" not in backdoor.members("index") + backdoor.members("dead") + backdoor.members("workers")
    assert len(backdoor.members("index")) == len(backdoor.members("workers")) == 1


async def test_loop_reaps_every_pool_and_outlasts_redis(
    pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.reaper, "EVERY_S", 0.005)
    job = submission()
    await producer.submit(job)
    reaping = asyncio.create_task(reap_forever(pipe, lambda: ["other", POOL], limits=LIMITS))
    backdoor.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    backdoor.pass_deadline(job.job_id)
    await wait_until(lambda: backdoor.status(job.job_id) == "expired")
    reaping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reaping
