"""What a worker may rely on: order, one lease per job, fencing, retries that keep their place."""

import asyncio

import pytest

from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.errors import StaleToken
from broker.job import Forecast, Lease, ServiceClass, Status, Submission
from broker.producer import Producer
from broker.scripts import Beat, Ending, Return, renew
from tests.broker.jobs import ERROR, KEYS, LIMITS, POOL, Backdoor, another, submission

ANSWER = Ending(succeeded=True, data=b'{"answer":1}', prompt_tokens=3, output_tokens=5, cached_tokens=1)


async def claim_one(worker: Consumer) -> Lease:
    [lease] = (await worker.claim(1)).leases
    return lease


async def leased(producer: Producer, worker: Consumer, job: Submission) -> Lease:
    await producer.submit(job)
    return await claim_one(worker)


async def test_lease_carries_what_was_submitted(producer: Producer, worker: Consumer) -> None:
    job = submission(
        service_class=ServiceClass.P2, stream=True, attached=True, tenant="acme", body=b"\x00\xff"
    )
    lease = await leased(producer, worker, job)
    assert (lease.job_id, lease.body, lease.endpoint) == (job.job_id, b"\x00\xff", "/v1/completions")
    assert (lease.service_class, lease.stream, lease.attached, lease.tenant) == (
        ServiceClass.P2,
        True,
        True,
        "acme",
    )
    assert (lease.run_s, lease.attempt, lease.token > 0) == (1.0, 1, True)
    view = await producer.get(job.job_id)
    assert lease.deadline == view.deadline
    assert lease.deadline - view.created == pytest.approx(job.deadline_s)


async def test_claim_goes_by_class_then_by_cost(producer: Producer, worker: Consumer) -> None:
    slow = submission(forecast=Forecast(1, 1, 500.0))
    fast = submission(forecast=Forecast(1, 1, 1.0))
    batch = submission(service_class=ServiceClass.P2, forecast=Forecast(1, 1, 0.0))
    await producer.submit_many([batch, slow, fast])
    claimed = await worker.claim(10)
    assert [lease.job_id for lease in claimed.leases] == [fast.job_id, slow.job_id, batch.job_id]


async def test_priority_orders_inside_a_class_only(producer: Producer, worker: Consumer) -> None:
    late, first, other = (
        submission(priority=2),
        submission(priority=-1),
        submission(priority=-5, service_class=ServiceClass.P1),
    )
    await producer.submit_many([late, other, first])
    claimed = await worker.claim(10)
    assert [lease.job_id for lease in claimed.leases] == [first.job_id, late.job_id, other.job_id]


async def test_claim_takes_no_more_than_asked_and_says_that_more_is_left(
    producer: Producer, worker: Consumer
) -> None:
    await producer.submit_many([submission() for _ in range(3)])
    first, second = await worker.claim(2), await worker.claim(2)
    assert (len(first.leases), first.more) == (2, True)
    assert (len(second.leases), second.more) == (1, False)


async def test_late_jobs_do_not_let_a_lower_class_in(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    late, alive, batch = submission(), submission(), submission(service_class=ServiceClass.P3)
    await producer.submit_many([late, alive, batch])
    backdoor.pass_deadline(late.job_id)
    claimed = await worker.claim(1)
    assert batch.job_id not in [lease.job_id for lease in claimed.leases]
    assert claimed.leases or claimed.more
    assert backdoor.status(late.job_id) == "expired"


async def test_each_job_is_leased_to_one_of_many_workers(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    jobs = [submission() for _ in range(60)]
    await producer.submit_many(jobs)
    async with another(pipe, redis_url, "w1") as one, another(pipe, redis_url, "w2") as two:
        rounds = await asyncio.gather(*(worker.claim(3) for _ in range(12) for worker in (one, two)))
    claimed = [lease.job_id for got in rounds for lease in got.leases]
    assert sorted(claimed) == sorted(job.job_id for job in jobs)


async def test_finish_twice_is_one_end(producer: Producer, worker: Consumer, backdoor: Backdoor) -> None:
    lease = await leased(producer, worker, submission())
    await worker.finish(lease, ANSWER)
    before = backdoor.snapshot()
    await worker.finish(lease, ANSWER)
    assert backdoor.snapshot() == before
    view = await producer.get(lease.job_id)
    assert (view.status, view.result, view.error) == (Status.SUCCEEDED, ANSWER.data, None)
    assert view.usage == {"prompt_tokens": 3, "completion_tokens": 5, "cached_tokens": 1}


async def test_finish_the_other_way_after_the_end_is_refused(producer: Producer, worker: Consumer) -> None:
    lease = await leased(producer, worker, submission())
    await worker.finish(lease, ANSWER)
    with pytest.raises(StaleToken):
        await worker.finish(lease, Ending(succeeded=False, data=ERROR))
    assert (await producer.get(lease.job_id)).result == ANSWER.data


async def test_stale_token_changes_nothing(producer: Producer, worker: Consumer, backdoor: Backdoor) -> None:
    old = await leased(producer, worker, submission())
    backdoor.end_lease(old.job_id)
    await worker.reap()
    new = await claim_one(worker)
    assert (new.job_id, new.token > old.token) == (old.job_id, True)
    before = backdoor.snapshot()
    assert await worker.append([Chunk(old.job_id, old.token, 1, b"{}")]) == [False]
    with pytest.raises(StaleToken):
        await worker.finish(old, ANSWER)
    with pytest.raises(StaleToken):
        await worker.release(old, Return("error", error=ERROR))
    assert backdoor.snapshot() == before


async def test_heartbeat_is_told_which_leases_are_lost(
    pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    kept, cancelled = [await leased(producer, worker, submission()) for _ in range(2)]
    await producer.cancel(cancelled.job_id)
    backdoor.end_lease(kept.job_id)
    held = ((kept.job_id, kept.token), (cancelled.job_id, cancelled.token))
    assert await pipe.run(renew(POOL, Beat("w1", b"{}", held, 10.0))) == [b"", cancelled.job_id.encode()]
    await worker.reap()
    assert backdoor.status(kept.job_id) == "running"
    assert backdoor.members("leases") == [kept.job_id]


@pytest.mark.parametrize("reason", ["busy", "drain"])
async def test_handing_back_is_not_counted_and_keeps_the_place(
    producer: Producer, worker: Consumer, reason: str
) -> None:
    first = await leased(producer, worker, submission())
    await producer.submit(submission())
    for _ in range(LIMITS.max_errors + 2):
        assert await worker.release(first, Return(reason))
        again = await claim_one(worker)
        assert again.job_id == first.job_id
        first = again
    assert (await producer.get(first.job_id)).errors == 0


async def test_retry_waits_for_its_delay_and_then_keeps_its_place(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    first = await leased(producer, worker, submission())
    later = submission()
    await producer.submit(later)
    score = backdoor.job(first.job_id)["score"]
    assert await worker.release(first, Return("error", delay_s=1000.0, error=ERROR))
    assert backdoor.members("ready:0") == [later.job_id]
    assert backdoor.members("delayed") == [first.job_id]
    backdoor.end_delay(first.job_id)
    claimed = await worker.claim(2)
    assert [lease.job_id for lease in claimed.leases] == [first.job_id, later.job_id]
    assert backdoor.job(first.job_id)["score"] == score


async def test_claim_says_when_the_next_retry_is_due(producer: Producer, worker: Consumer) -> None:
    lease = await leased(producer, worker, submission())
    assert (await worker.claim(1)).next_due_s is None
    await worker.release(lease, Return("error", delay_s=1000.0, error=ERROR))
    due_s = (await worker.claim(1)).next_due_s
    assert due_s is not None
    assert 0 < due_s <= 1000.0


async def test_answer_whose_first_byte_was_seen_is_not_begun_again(
    producer: Producer, worker: Consumer
) -> None:
    lease = await leased(producer, worker, submission(attached=True, stream=True))
    await worker.append([Chunk(lease.job_id, lease.token, 1, b"{}")])
    assert not await worker.release(lease, Return("error", error=ERROR))
    view = await producer.get(lease.job_id)
    assert (view.status, view.error) == (Status.FAILED, ERROR)


async def test_chunks_written_again_are_kept_once(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await leased(producer, worker, submission(stream=True))
    chunk = Chunk(lease.job_id, lease.token, 2, b"a\nb")
    assert await worker.append([chunk, chunk]) == [True, True]
    assert len(backdoor.ask("XRANGE", KEYS.output(lease.job_id), "-", "+")) == 1


async def test_running_job_that_is_cancelled_is_aborted_and_cannot_be_finished(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    lease = await leased(producer, worker, submission())
    with backdoor.hear(KEYS.control) as heard:
        assert await producer.cancel(lease.job_id) is Status.CANCELLED
        assert heard() == f"abort {lease.job_id} {lease.token}".encode()
    with pytest.raises(StaleToken):
        await worker.finish(lease, ANSWER)
    assert backdoor.members("leases") == []


async def test_worker_that_leaves_is_forgotten(pipe: Pipe, worker: Consumer, backdoor: Backdoor) -> None:
    await pipe.run(renew(POOL, Beat("w1", b"{}", (), 10.0)))
    assert backdoor.members("workers") == ["w1"]
    await worker.leave()
    assert backdoor.members("workers") == []
    assert not backdoor.ask("EXISTS", KEYS.worker("w1"))


async def test_a_full_worker_that_hears_of_an_urgent_job_has_the_one_with_most_room_look(
    pipe: Pipe, redis_url: str, producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    async with another(pipe, redis_url, "other") as other:
        await other.claim(2)  # nothing is there: it has room
    await producer.submit(submission())
    await worker.wait(5.0, for_all=False)
    await worker.ring_on(also_full=True)
    assert backdoor.ask("ZCARD", KEYS.named("urgent")) == 0
    assert backdoor.ask("PTTL", KEYS.marker("other")) > 0


async def test_where_nobody_has_room_another_full_worker_hears_of_it_if_that_is_wished(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    await producer.submit(submission())
    await worker.wait(5.0, for_all=False)
    await worker.ring_on(also_full=False)
    assert backdoor.ask("ZCARD", KEYS.named("urgent")) == 0
    await worker.ring_on(also_full=True)
    assert backdoor.ask("ZCARD", KEYS.named("urgent")) == 1
