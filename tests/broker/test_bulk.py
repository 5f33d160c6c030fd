"""Bulk ways in and out do what the single ones do, and many at once."""

from dataclasses import replace
from itertools import pairwise

import pytest

from broker import scripts
from broker.consumer import Consumer
from broker.errors import MemoryFull
from broker.job import Forecast, ServiceClass, Status, Submission
from broker.producer import Producer
from broker.scripts import Ending
from tests.broker.jobs import KEYS, Backdoor, submission

KINDS = [
    submission(),
    submission(service_class=ServiceClass.P2, weight=2.0, tenant="a", forecast=Forecast(0, 0, 0.5)),
    submission(service_class=ServiceClass.P3, hold_s=60.0, listed=True, metadata=b"{}", reply_to="here"),
    submission(stream=True, attached=True, priority=3, tenant_cap=2, prefix="a,b"),
]
END = Ending(succeeded=True, data=b"{}", prompt_tokens=1, output_tokens=2)


def without_times(fields: dict[str, str]) -> dict[str, str]:
    """Scores and times by their distance from the job's creation."""
    created = float(fields["created"])
    return {
        n: f"{float(v) - created:g}" if n in ("score", "deadline") else v
        for n, v in fields.items()
        if n != "created"
    }


async def stored(backdoor: Backdoor, job: Submission) -> tuple[dict[str, str], list[bool]]:
    """A job's hash, and which sets it is in."""
    names = ("ready:0", "ready:2", "ready:3", "delayed", "deadlines", "aging", "index")
    sets = [job.job_id in backdoor.members(name) for name in names]
    return without_times(backdoor.job(job.job_id)), sets


@pytest.mark.parametrize("job", KINDS)
async def test_job_of_a_bulk_is_stored_as_a_single_one(
    producer: Producer, backdoor: Backdoor, job: Submission
) -> None:
    other = replace(job, job_id=submission().job_id, tenant=job.tenant + "2")  # a tenant is charged in order
    await producer.submit(job)
    assert (await producer.submit_bulk([other]))[0].created
    hash_, sets = await stored(backdoor, other)
    assert (hash_ | {"tenant": job.tenant}, sets) == await stored(backdoor, job)
    assert backdoor.ask("GET", KEYS.payload(other.job_id)) == other.body


async def test_bulk_keeps_the_order_and_the_fair_share_of_single_jobs(
    producer: Producer, backdoor: Backdoor
) -> None:
    jobs = [submission(weight=2.0, forecast=Forecast(1, 1, 4.0)) for _ in range(3)]
    await producer.submit_bulk(jobs)
    assert backdoor.members("ready:0") == [job.job_id for job in jobs]
    scores = [float(backdoor.job(job.job_id)["score"]) for job in jobs]
    assert [round(b - a) for a, b in pairwise(scores)] == [2000, 2000]


async def test_bulk_answers_in_order_over_kinds_and_parts(
    producer: Producer, worker: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.producer.BULK", 2)
    jobs = [submission(service_class=ServiceClass(n % 2)) for n in range(9)]
    await producer.submit(jobs[4])
    accepted = await producer.submit_bulk(jobs)
    assert [a.job_id for a in accepted] == [job.job_id for job in jobs]
    assert [a.created for a in accepted] == [n != 4 for n in range(9)]
    assert len((await worker.claim(20)).leases) == 9


async def test_bulk_of_known_jobs_changes_nothing_but_the_reply_address(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    jobs = [submission(service_class=ServiceClass.P2) for _ in range(2)]
    await producer.submit_bulk(jobs)
    await worker.finish((await worker.claim(1)).leases[0], END)
    before = backdoor.job(jobs[1].job_id)
    again = await producer.submit_bulk([replace(job, reply_to="there") for job in jobs])
    assert [(a.created, a.status) for a in again] == [(False, Status.SUCCEEDED), (False, Status.QUEUED)]
    assert backdoor.job(jobs[1].job_id) == before | {"reply": "there"}


async def test_bulk_is_refused_whole_when_memory_is_full(producer: Producer, backdoor: Backdoor) -> None:
    await producer.submit(submission())  # so that the script is known
    before = backdoor.snapshot()
    backdoor.fill_memory()
    try:
        with pytest.raises(MemoryFull):
            await producer.submit_bulk([submission(), submission()])
    finally:
        backdoor.free_memory()
    assert backdoor.snapshot() == before


async def test_bulk_wakes_a_waiting_worker(producer: Producer, backdoor: Backdoor) -> None:
    await producer.submit_bulk([submission(service_class=ServiceClass.P2)])
    assert backdoor.members("marker") == ["work"]


async def test_finish_of_many_ends_those_whose_token_is_current(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    jobs = [submission() for _ in range(3)]
    await producer.submit_bulk(jobs)
    leases = (await worker.claim(3)).leases
    stale = replace(leases[1], token=leases[1].token + 1)
    assert await worker.finish_many([(leases[0], END), (stale, END), (leases[2], END)]) == [True, False, True]
    assert [backdoor.status(lease.job_id) for lease in leases] == ["succeeded", "running", "succeeded"]
    assert backdoor.stats()["succeeded:0"] == "2"
    await worker.finish(leases[1], END)


def test_jobs_of_a_bulk_script_are_alike_but_for_request_and_forecast() -> None:
    plain = submission()
    other = replace(plain, job_id=submission().job_id, body=b"x", forecast=Forecast(9, 9, 9.0), prefix="p")
    assert scripts.alike(plain) == scripts.alike(other)
    assert scripts.alike(plain) != scripts.alike(replace(plain, tenant="other"))
