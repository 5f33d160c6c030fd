"""The reaper mends indexes that a lost write, a hand or a bug has broken, and leaves whole ones as they are."""

from collections.abc import Mapping

import pytest

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import Lease, ServiceClass, Status
from broker.policy import DAY_S
from broker.producer import Producer
from broker.scripts import Beat, Ending, Return
from tests.broker.jobs import ERROR, KEYS, LIMITS, POOL, Backdoor, submission

GONE = f"job_{'z' * 26}.{POOL}"
FAR_MS = 10**15


def repaired(backdoor: Backdoor) -> Mapping[str, int]:
    """What was counted, by what it was."""
    stats = backdoor.stats().items()
    return {name.partition(":")[2]: int(n) for name, n in stats if name.startswith("reconciled:")}


async def reap(worker: Consumer, backdoor: Backdoor) -> list[int]:
    backdoor.let_reap()
    return await worker.reap()


async def running(producer: Producer, worker: Consumer) -> Lease:
    await producer.submit(submission())
    [lease] = (await worker.claim(1)).leases
    return lease


async def test_running_job_without_a_lease_counts_as_a_death_and_goes_back(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await running(producer, worker)
    backdoor.ask("ZREM", KEYS.named("leases"), lease.job_id)
    assert await reap(worker, backdoor) == [1, 0, 0]
    assert repaired(backdoor) == {"running_without_lease": 1}
    assert backdoor.stats()["deaths"] == "1"
    assert backdoor.members("ready:0") == [lease.job_id]
    assert (await producer.get(lease.job_id)).deaths == 1
    [again] = (await worker.claim(1)).leases
    assert (again.job_id, again.token > lease.token) == (lease.job_id, True)


async def test_running_job_that_loses_its_lease_too_often_is_buried(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await running(producer, worker)
    for _ in range(LIMITS.max_deaths + 1):
        backdoor.ask("ZREM", KEYS.named("leases"), lease.job_id)
        await reap(worker, backdoor)
        await worker.claim(1)
    assert await producer.dead(POOL) == [lease.job_id]


@pytest.mark.parametrize("ended", [False, True])
async def test_lease_whose_job_has_ended_or_is_gone_is_dropped(
    producer: Producer, worker: Consumer, backdoor: Backdoor, ended: bool
) -> None:
    job_id = GONE
    if ended:
        lease = await running(producer, worker)
        await worker.finish(lease, Ending(succeeded=True, data=b"{}"))
        job_id = lease.job_id
    backdoor.ask("ZADD", KEYS.named("leases"), FAR_MS, job_id)
    assert await reap(worker, backdoor) == [0, 0, 0]
    assert backdoor.members("leases") == []
    assert repaired(backdoor) == {"lease_without_job": 1}


@pytest.mark.parametrize("service_class", [ServiceClass.P0, ServiceClass.P3])
@pytest.mark.parametrize("retried", [False, True])
async def test_queued_job_in_no_set_is_put_where_claim_finds_it(
    producer: Producer, worker: Consumer, backdoor: Backdoor, *, service_class: ServiceClass, retried: bool
) -> None:
    """P0 is found through `deadlines`, P3 through `aging`."""
    job = submission(service_class=service_class)
    await producer.submit(job)
    if retried:
        [lease] = (await worker.claim(1)).leases
        await worker.release(lease, Return("error", delay_s=100.0, error=ERROR))
    for name in ("delayed", f"ready:{service_class:d}", "marker"):
        backdoor.ask("ZREM", KEYS.named(name), job.job_id, "work")
    await reap(worker, backdoor)
    assert repaired(backdoor) == {"queued_nowhere": 1}
    assert backdoor.members("marker") == ["work"]
    score = backdoor.ask("ZSCORE", KEYS.named(f"ready:{service_class:d}"), job.job_id)
    assert float(score) == float(backdoor.job(job.job_id)["score"])
    assert [lease.job_id for lease in (await worker.claim(1)).leases] == [job.job_id]


async def test_promoted_job_in_no_set_goes_back_to_its_level(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    job = submission(service_class=ServiceClass.P2)
    await producer.submit(job)
    backdoor.ask("ZADD", KEYS.named("aging"), 1, job.job_id)
    await reap(worker, backdoor)
    assert backdoor.members("aged:1") == [job.job_id]
    backdoor.ask("ZREM", KEYS.named("aged:1"), job.job_id)
    await reap(worker, backdoor)
    assert backdoor.members("aged:1") == [job.job_id]
    assert backdoor.members("ready:2") == []


@pytest.mark.parametrize("name", ["ready:0", "ready:3", "aged:0", "aged:2", "delayed", "deadlines", "aging"])
async def test_member_without_a_job_is_removed(worker: Consumer, backdoor: Backdoor, name: str) -> None:
    """And never made a job of, whatever the member is called."""
    backdoor.ask("ZADD", KEYS.named(name), FAR_MS, GONE)
    await reap(worker, backdoor)
    assert backdoor.members(name) == []
    assert repaired(backdoor) == {"member_without_job": 1}
    assert not backdoor.ask("EXISTS", KEYS.job(GONE))


async def test_job_that_runs_is_taken_out_of_the_ready_sets(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await running(producer, worker)
    backdoor.ask("ZADD", KEYS.named("ready:0"), 1, lease.job_id)
    await reap(worker, backdoor)
    assert backdoor.members("ready:0") == []
    assert backdoor.members("leases") == [lease.job_id]


@pytest.mark.parametrize("state", ["queued", "running"])
async def test_job_without_a_deadline_gets_its_own_back(
    producer: Producer, worker: Consumer, backdoor: Backdoor, state: str
) -> None:
    job = submission()
    await producer.submit(job)
    if state == "running":
        await worker.claim(1)
    backdoor.ask("ZREM", KEYS.named("deadlines"), job.job_id)
    await reap(worker, backdoor)
    score = backdoor.ask("ZSCORE", KEYS.named("deadlines"), job.job_id)
    assert float(score) == float(backdoor.job(job.job_id)["deadline"])
    assert repaired(backdoor) == {"without_deadline": 1}


async def test_lease_from_before_the_clock_was_put_back_ends_in_time(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    """After a failover to a host whose clock is a day behind, a dead worker's lease would last a day more."""
    lease = await running(producer, worker)
    day_ms = round(DAY_S * 1000)
    backdoor.ask("ZINCRBY", KEYS.named("leases"), day_ms, lease.job_id)
    await reap(worker, backdoor)
    claimed = float(backdoor.job(lease.job_id)["claimed"])
    ends = float(backdoor.ask("ZSCORE", KEYS.named("leases"), lease.job_id))
    assert claimed < ends < claimed + day_ms
    assert repaired(backdoor) == {"lease_too_long": 1}


async def test_capped_job_is_let_in_when_nothing_of_its_tenant_runs(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    first, second = (submission(tenant="acme", tenant_cap=1) for _ in range(2))
    await producer.submit_many([first, second])
    [lease] = (await worker.claim(2)).leases
    waiting = ({first.job_id, second.job_id} - {lease.job_id}).pop()
    assert backdoor.members("capped:acme") == [waiting]
    await reap(worker, backdoor)
    assert backdoor.members("capped:acme") == [waiting]
    backdoor.ask("HDEL", KEYS.named("running"), "acme")
    await reap(worker, backdoor)
    assert backdoor.members("ready:0") == [waiting]


async def test_capped_job_does_not_wait_for_one_that_was_cancelled_in_the_queue(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    jobs = [submission(tenant="acme", tenant_cap=1) for _ in range(3)]
    await producer.submit_many(jobs)
    [lease] = (await worker.claim(3)).leases
    await worker.finish(lease, Ending(succeeded=True, data=b"{}"))
    [let_in], [waiting] = backdoor.members("ready:0"), backdoor.members("capped:acme")
    assert await producer.cancel(let_in) is Status.CANCELLED
    assert backdoor.members("ready:0") == [waiting]
    assert [lease.job_id for lease in (await worker.claim(1)).leases] == [waiting]


async def test_whole_indexes_are_left_as_they_are(
    pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    """Of jobs in every state, however often they are looked at."""
    for service_class in ServiceClass:
        await producer.submit_many([submission(service_class=service_class, listed=True) for _ in range(4)])
        await producer.submit(submission(service_class=service_class, hold_s=100.0))
    await producer.submit_many([submission(tenant="acme", tenant_cap=1, priority=-5) for _ in range(3)])
    first, second, third, *_ = (await worker.claim(4)).leases
    await worker.finish(first, Ending(succeeded=True, data=b"{}"))
    await worker.release(second, Return("error", delay_s=100.0, error=ERROR))
    await worker.release(third, Return("drain"))
    for old in backdoor.members("ready:2")[:2]:
        backdoor.ask("ZADD", KEYS.named("aging"), 1, old)
    await reap(worker, backdoor)
    await pipe.run(scripts.renew(POOL, Beat("w1", b"{}", (), 10.0)))
    before = backdoor.snapshot()
    for _ in range(3):
        assert await reap(worker, backdoor) == [0, 0, 0]
    assert backdoor.snapshot() == before
    assert repaired(backdoor) == {}


async def test_one_round_comes_past_every_job_though_it_takes_many_calls(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    """Jobs that leave meanwhile hide none of those that are still to be looked at."""
    jobs = [submission(service_class=ServiceClass.P3) for _ in range(300)]
    await producer.submit_bulk(jobs)
    lost = jobs[::7]
    backdoor.ask("ZREM", KEYS.named("ready:3"), *(job.job_id for job in lost))
    counts: list[int] = []
    for job in jobs[1::7][:11]:
        await reap(worker, backdoor)
        counts.append(repaired(backdoor)["queued_nowhere"])
        await producer.cancel(job.job_id)
    assert counts[0] < len(lost), "a call is bounded"
    assert counts[-1] == len(lost)
    assert set(backdoor.members("ready:3")) >= {job.job_id for job in lost}


async def test_indexes_are_mended_with_memory_full(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await running(producer, worker)
    job = submission()
    await producer.submit(job)
    backdoor.ask("ZREM", KEYS.named("leases"), lease.job_id)
    backdoor.ask("ZREM", KEYS.named("ready:0"), job.job_id)
    backdoor.fill_memory()
    try:
        assert await reap(worker, backdoor) == [1, 0, 0]
    finally:
        backdoor.free_memory()
    assert set(backdoor.members("ready:0")) == {lease.job_id, job.job_id}
