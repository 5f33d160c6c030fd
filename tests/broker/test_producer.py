"""What callers of the queue may rely on: a job is known by its id, ends once, and can be found, cancelled, re-driven."""

import asyncio

import orjson
import pytest

from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.errors import InvalidJob, UnknownJob
from broker.job import Forecast, Lease, ServiceClass, Status, Submission, new_job_id
from broker.producer import Producer, Query
from broker.record import view
from broker.scripts import Ending, Return
from tests.broker.jobs import BODY, ERROR, KEYS, LIMITS, POOL, Backdoor, submission

ANSWER = Ending(succeeded=True, data=b'{"answer":1}')


async def leased(producer: Producer, worker: Consumer, job: Submission) -> Lease:
    await producer.submit(job)
    [lease] = (await worker.claim(1)).leases
    return lease


async def position(producer: Producer, job: Submission) -> int | None:
    found = await producer.ahead(job.job_id)
    return None if found is None else found.jobs


async def killed_by_errors(producer: Producer, worker: Consumer, job: Submission) -> str:
    """A dead letter."""
    lease = await leased(producer, worker, job)
    while await worker.release(lease, Return("error", error=ERROR)):
        [lease] = (await worker.claim(1)).leases
    return lease.job_id


async def test_submitted_job_is_shown_as_it_was_given(producer: Producer) -> None:
    job = submission(
        service_class=ServiceClass.P1,
        tenant="acme",
        metadata=b'{"k":1}',
        deadline_s=60.0,
        forecast=Forecast(7, 9, 1.5, tool_call=0.87),
    )
    accepted = await producer.submit(job)
    assert (accepted.created, accepted.status, accepted.position) == (True, Status.QUEUED, 0)
    shown = await producer.get(job.job_id)
    assert (shown.service_class, shown.tenant, shown.metadata) == (ServiceClass.P1, "acme", b'{"k":1}')
    assert (shown.forecast, shown.endpoint, shown.pool) == (job.forecast, job.endpoint, POOL)
    assert (shown.claimed, shown.finished, shown.result, shown.error) == (None, None, None, None)
    assert shown.deadline - shown.created == pytest.approx(60.0)


async def test_same_id_is_accepted_once(producer: Producer, worker: Consumer) -> None:
    job = submission()
    first, *others = await producer.submit_many([job] * 5)
    assert (first.created, [other.created for other in others]) == (True, [False] * 4)
    assert len((await worker.claim(10)).leases) == 1
    assert (await producer.submit(job)).status is Status.RUNNING


async def test_repeat_after_the_end_does_not_run_again(producer: Producer, worker: Consumer) -> None:
    lease = await leased(producer, worker, submission())
    await worker.finish(lease, ANSWER)
    again = await producer.submit(submission(job_id=lease.job_id))
    assert (again.created, again.status) == (False, Status.SUCCEEDED)
    assert (await worker.claim(1)).leases == []


async def test_repeat_renews_where_to_reply(producer: Producer, backdoor: Backdoor) -> None:
    job = submission(reply_to="hw:reply:old")
    await producer.submit(job)
    await producer.submit(submission(job_id=job.job_id, reply_to="hw:reply:new"))
    assert backdoor.job(job.job_id)["reply"] == "hw:reply:new"


async def test_position_counts_what_is_claimed_before(producer: Producer) -> None:
    jobs = [
        submission(service_class=c)
        for c in (ServiceClass.P1, ServiceClass.P0, ServiceClass.P2, ServiceClass.P0)
    ]
    accepted = await producer.submit_many(jobs)
    assert [answer.position for answer in accepted] == [0, 0, 2, 1]
    assert [await position(producer, job) for job in jobs] == [2, 0, 3, 1]


async def test_held_job_has_no_position_and_is_fed_once(producer: Producer, worker: Consumer) -> None:
    job = submission(hold_s=100.0)
    await producer.submit(job)
    assert (await worker.claim(1)).leases == []
    assert await producer.ahead(job.job_id) is None
    assert await producer.feed(job.job_id)
    assert not await producer.feed(job.job_id)
    assert [lease.job_id for lease in (await worker.claim(1)).leases] == [job.job_id]


async def test_held_job_comes_in_by_itself_when_nobody_feeds_it(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    job = submission(hold_s=100.0)
    await producer.submit(job)
    backdoor.end_delay(job.job_id)
    assert [lease.job_id for lease in (await worker.claim(1)).leases] == [job.job_id]


async def test_feeding_does_not_cut_a_retry_short(producer: Producer, worker: Consumer) -> None:
    lease = await leased(producer, worker, submission())
    await worker.release(lease, Return("error", delay_s=100.0, error=ERROR))
    assert not await producer.feed(lease.job_id)
    assert (await worker.claim(1)).leases == []


async def test_cancelled_job_is_not_claimed(producer: Producer, worker: Consumer, backdoor: Backdoor) -> None:
    ready, held = submission(), submission(hold_s=100.0)
    await producer.submit_many([ready, held])
    for job in (ready, held):
        assert await producer.cancel(job.job_id) is Status.CANCELLED
        assert await producer.cancel(job.job_id) is Status.CANCELLED
    assert (await worker.claim(2)).leases == []
    assert not backdoor.members("delayed") + backdoor.members("deadlines")


async def test_job_expires_when_its_deadline_has_passed_and_not_before(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    queued, running = submission(), submission(service_class=ServiceClass.P1)
    await producer.submit_many([running])
    await worker.claim(1)
    await producer.submit(queued)
    for job_id, status in ((queued.job_id, "queued"), (running.job_id, "running")):
        await producer.expire(job_id)
        assert backdoor.status(job_id) == status
        backdoor.pass_deadline(job_id)
        await producer.expire(job_id)
        assert backdoor.status(job_id) == "expired"
    await producer.expire(submission().job_id)
    assert not backdoor.members("deadlines")
    assert not backdoor.members("leases")


async def test_job_that_ended_stays_as_it_ended(producer: Producer, worker: Consumer) -> None:
    lease = await leased(producer, worker, submission())
    await worker.finish(lease, ANSWER)
    assert await producer.cancel(lease.job_id) is Status.SUCCEEDED
    assert (await producer.get(lease.job_id)).result == ANSWER.data


async def test_unknown_job_is_said_to_be_unknown(producer: Producer) -> None:
    for asked in (producer.get, producer.cancel, producer.redrive):
        with pytest.raises(UnknownJob):
            await asked(new_job_id(POOL))


@pytest.mark.parametrize(
    "text", ["", "job_", "nonsense", f"job_{'a' * 26}", f"job_{'a' * 26}.{{x}}", f"job_{'A' * 26}.p"]
)
async def test_what_is_no_job_id_is_refused(producer: Producer, text: str) -> None:
    with pytest.raises(InvalidJob):
        await producer.get(text)


def test_answer_that_arrives_between_two_reads_is_not_taken_for_an_error() -> None:
    """`get` reads the record and the result one after the other; a worker may finish in between."""
    fields = {b"status": b"running", b"class": b"0", b"endpoint": b"/v1/completions", b"tenant": b"default"}
    shown = view(new_job_id(POOL), fields, result=b'{"answer":1}')
    assert (shown.result, shown.error) == (None, None)


async def test_tenants_with_a_weight_share_by_it(producer: Producer, worker: Consumer) -> None:
    """One that asked for much before waits for one that asked for little."""
    greedy = [submission(tenant="greedy", weight=1.0, forecast=Forecast(1, 1, 10.0)) for _ in range(5)]
    modest = submission(tenant="modest", weight=1.0, forecast=Forecast(1, 1, 10.0))
    await producer.submit_many([*greedy, modest])
    claimed = [lease.job_id for lease in (await worker.claim(10)).leases]
    assert claimed == [greedy[0].job_id, modest.job_id, *(job.job_id for job in greedy[1:])]


async def test_fairness_is_forgotten_when_it_no_longer_matters(
    producer: Producer, backdoor: Backdoor
) -> None:
    job = submission(tenant="acme", weight=2.0, forecast=Forecast(1, 1, 10.0))
    await producer.submit(job)
    assert 4900 < backdoor.ask("PTTL", KEYS.fair("acme")) <= 5000  # 10 s of cost over a weight of 2


async def test_listing_shows_listed_jobs_newest_first(producer: Producer) -> None:
    jobs = [submission(listed=i != 2) for i in range(5)]
    await producer.submit_many(jobs)
    expected = sorted((job.job_id for job in jobs if job.listed), reverse=True)
    found = [job.job_id for job in await producer.list_jobs(POOL, Query())]
    assert sorted(found, reverse=True) == expected
    first = await producer.list_jobs(POOL, Query(limit=3))
    rest = await producer.list_jobs(POOL, Query(limit=3, after=first[-1].job_id))
    assert [job.job_id for job in (*first, *rest)] == found


async def test_listing_filters_by_status_and_class(producer: Producer) -> None:
    jobs = [submission(listed=True, service_class=ServiceClass(i % 4)) for i in range(12)]
    await producer.submit_many(jobs)
    for job in jobs[:4]:
        await producer.cancel(job.job_id)
    cancelled = await producer.list_jobs(POOL, Query(statuses=frozenset({Status.CANCELLED}), limit=4))
    assert {job.job_id for job in cancelled} == {job.job_id for job in jobs[:4]}
    query = Query(statuses=frozenset({Status.QUEUED}), classes=frozenset({ServiceClass.P2}), limit=2)
    assert {job.job_id for job in await producer.list_jobs(POOL, query)} == {jobs[6].job_id, jobs[10].job_id}


async def test_dead_letter_has_its_history_and_its_request(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    dead = await killed_by_errors(producer, worker, submission())
    assert await producer.dead(POOL) == [dead]
    shown = await producer.get(dead)
    assert (shown.status, shown.errors, shown.deaths) == (Status.FAILED, LIMITS.max_errors + 1, 0)
    assert shown.error == ERROR
    errors = [(each.ended, each.error) for each in await producer.history(dead)]
    assert errors == [("error", orjson.loads(ERROR))] * (LIMITS.max_errors + 1)
    assert backdoor.ask("GET", KEYS.payload(dead)) == BODY
    assert backdoor.ask("PTTL", KEYS.payload(dead)) > 0


async def test_dead_letter_is_redriven_once_as_a_new_job(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    dead = await killed_by_errors(producer, worker, submission(service_class=ServiceClass.P2, tenant="acme"))
    new = await producer.redrive(dead, deadline_s=50.0)
    with pytest.raises(UnknownJob):
        await producer.redrive(dead)
    assert await producer.dead(POOL) == []
    assert not backdoor.ask("EXISTS", KEYS.payload(dead))
    old = await producer.get(dead)
    assert (old.status, old.redriven_as) == (Status.FAILED, new)
    [lease] = (await worker.claim(1)).leases
    assert (lease.job_id, lease.body, lease.service_class, lease.tenant) == (
        new,
        BODY,
        ServiceClass.P2,
        "acme",
    )
    assert lease.attempt == 1


async def test_errors_and_deaths_are_counted_apart(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    """One of each is within the limit of one of each."""
    lease = await leased(producer, worker, submission())
    assert await worker.release(lease, Return("error", error=ERROR))
    [lease] = (await worker.claim(1)).leases
    backdoor.end_lease(lease.job_id)
    assert await worker.reap() == [1, 0, 0]
    shown = await producer.get(lease.job_id)
    assert (shown.status, shown.errors, shown.deaths) == (Status.QUEUED, 1, 1)


async def test_forgotten_records_go_and_pending_ones_stay(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    ended = await leased(producer, worker, submission(retain_s=1000.0))
    await worker.append([Chunk(ended.job_id, ended.token, 1, b"{}")])
    await worker.finish(ended, ANSWER)
    running, queued = await leased(producer, worker, submission()), submission()
    await producer.submit(queued)
    await producer.forget([ended.job_id, running.job_id, queued.job_id, new_job_id(POOL)])
    for name in (KEYS.job, KEYS.result, KEYS.output):
        assert 0 <= backdoor.ask("PTTL", name(ended.job_id)) <= 1000 or not backdoor.ask(
            "EXISTS", name(ended.job_id)
        )
    for job_id in (running.job_id, queued.job_id):
        assert backdoor.ask("PTTL", KEYS.job(job_id)) == -1


async def test_dead_letter_can_be_redriven_after_it_was_forgotten(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    dead = await killed_by_errors(producer, worker, submission())
    await producer.forget([dead])
    assert backdoor.ask("PTTL", KEYS.job(dead)) > 1000
    new = await producer.redrive(dead)
    assert (await producer.get(new)).status is Status.QUEUED


async def test_dead_letter_without_a_record_is_not_redriven(
    pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    dead = await killed_by_errors(producer, worker, submission())
    backdoor.ask("DEL", KEYS.job(dead))
    before = backdoor.snapshot()
    with pytest.raises(UnknownJob):
        await producer.redrive(dead)
    assert backdoor.snapshot() == before


async def test_many_callers_at_once_get_their_own_answers(producer: Producer) -> None:
    jobs = [submission() for _ in range(200)]
    accepted = await asyncio.gather(*(producer.submit(job) for job in jobs))
    assert [answer.job_id for answer in accepted] == [job.job_id for job in jobs]
    assert sorted(answer.position for answer in accepted) == list(range(200))
