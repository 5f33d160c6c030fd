"""What a claim decides beyond order: aging and its share, what does not fit, prefixes, caps of tenants, pauses.

Numbers are counted by hand from docs/scheduling.md. Time passes by back-dating what Redis wrote.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import WorkerRecord, look
from broker.job import Forecast, ServiceClass
from broker.policy import Aging, Asking, Order, Passing, Room
from broker.producer import Producer
from broker.scripts import Beat, Return, renew
from broker.steering import Wish, steer_pool
from tests.broker.jobs import KEYS, LIMITS, LONG_AGO, POOL, Backdoor, submission

P0, P1, P2, P3 = ServiceClass
BUSY = Room(1, total_slots=4)
NOBODY_BYPASSED = Passing(bypass_n=2, bypass_s=1000.0, patience_s=1000.0)


@asynccontextmanager
async def alive(
    pipe: Pipe, url: str, *, name: str, passing: Passing = NOBODY_BYPASSED
) -> AsyncIterator[Consumer]:
    """A worker that the fleet knows."""
    consumer = Consumer(pipe, url, pool=POOL, asking=Asking(name, passing=passing), limits=LIMITS)
    record = WorkerRecord(name, POOL, "e", "m", 8, 0, "ready", 1, "here").dump()
    await pipe.run(renew(POOL, Beat(name, record, (), 10.0)))
    yield consumer
    await consumer.close()


async def submit(producer: Producer, n: int = 1, **changes: object) -> list[str]:
    jobs = [submission(**changes) for _ in range(n)]
    await producer.submit_many(jobs)
    return [job.job_id for job in jobs]


async def claimed(worker: Consumer, room: Room | int) -> list[str]:
    return [lease.job_id for lease in (await worker.claim(room)).leases]


def grow_old(backdoor: Backdoor, *job_ids: str) -> None:
    """As if their time at this level had passed."""
    for job_id in job_ids:
        assert backdoor.ask("ZADD", KEYS.named("aging"), "XX", "CH", LONG_AGO, job_id) == 1


async def test_job_rises_one_level_at_a_time_and_keeps_its_class(
    pipe: Pipe, producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    [job_id] = await submit(producer, service_class=P3)
    for level in (2, 1, 0):
        grow_old(backdoor, job_id)
        await worker.claim(0)
        assert backdoor.members(f"aged:{level}") == [job_id]
        seen = await look(pipe, POOL)
        assert (seen.waiting, seen.promoted) == ([0, 0, 0, 0], 1)
        assert backdoor.job(job_id)["class"] == "3"
    assert backdoor.members("aging") == [], "at the top it stays"
    assert backdoor.stats()["promoted:3"] == "3"
    assert await claimed(worker, 1) == [job_id]
    assert backdoor.members("aged:0") == []


async def test_interactive_jobs_do_not_age(producer: Producer, backdoor: Backdoor) -> None:
    await submit(producer, service_class=P0)
    assert backdoor.members("aging") == []


async def test_promoted_jobs_take_a_fifth_of_the_claims_while_others_wait(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    old = await submit(producer, 30, service_class=P1)
    await submit(producer, 30, service_class=P0)
    grow_old(backdoor, *old)
    await worker.claim(0)
    order = [job_id in old for _ in range(30) for job_id in await claimed(worker, 1)]
    assert order == [False, False, False, False, True] * 6
    rest = [job_id in old for job_id in await claimed(worker, 30)]
    assert rest.count(False) == 6
    assert rest[-1], "with nobody else waiting they take everything"


async def test_promoted_jobs_are_claimed_in_the_order_of_their_promotion(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    [first] = await submit(producer, service_class=P1, priority=5)
    grow_old(backdoor, first)
    await worker.claim(0)
    [second] = await submit(producer, service_class=P1, priority=-5)
    backdoor.ask(
        "ZADD", KEYS.named("aged:0"), "XX", LONG_AGO, first
    )  # promoted within the same millisecond otherwise
    grow_old(backdoor, second)
    assert await claimed(worker, 2) == [first, second]


async def test_retry_keeps_its_level(producer: Producer, worker: Consumer, backdoor: Backdoor) -> None:
    [job_id] = await submit(producer, service_class=P2)
    grow_old(backdoor, job_id)
    [lease] = (await worker.claim(1)).leases
    await worker.release(lease, Return("drain"))
    assert backdoor.members("aged:1") == [job_id]
    assert backdoor.members("aging") == [job_id]


async def test_slack_that_runs_out_promotes_earlier() -> None:
    aging = Aging()
    assert aging.first_s(P2, deadline_s=10_000, run_s=1) == 600
    assert aging.first_s(P2, deadline_s=100, run_s=20) == 60
    assert aging.first_s(P2, deadline_s=10, run_s=20) == 0.001
    assert aging.first_s(P0, deadline_s=10, run_s=20) == 0


async def test_aging_can_be_switched_off(pipe: Pipe, backdoor: Backdoor) -> None:
    producer = Producer(pipe, Order(aging=Aging((0, 0, 0, 0))))
    await submit(producer, service_class=P2)
    assert backdoor.members("aging") == []


async def test_job_that_does_not_fit_is_passed_and_then_room_is_held_for_it(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    big = Forecast(900, 100, 1.0, 1000)
    small = Forecast(10, 10, 1.0, 20)
    [large] = await submit(producer, forecast=big)
    others = await submit(producer, 4, forecast=small)
    room = Room(1, kv_tokens=500, kv_total_tokens=2000, total_slots=4)
    async with alive(pipe, redis_url, name="w1") as worker, alive(pipe, redis_url, name="w2") as second:
        assert await claimed(worker, room) == [others[0]]
        assert await claimed(worker, room) == [others[1]]
        held = await worker.claim(room)
        assert (held.leases, held.passed) == ([], True), "bypassed twice: now room is held"
        assert await claimed(second, room) == [others[2]], "by one worker only"
        assert await claimed(worker, replace(room, kv_tokens=1500)) == [large]
        assert await claimed(worker, room) == [others[3]], "and the hold is over"


async def test_job_larger_than_the_engine_holds_up_nobody(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    await submit(producer, forecast=Forecast(5000, 0, 1.0, 5000))
    others = await submit(producer, 5, forecast=Forecast(1, 1, 1.0, 2))
    room = Room(1, kv_tokens=500, kv_total_tokens=2000, total_slots=4)
    async with alive(pipe, redis_url, name="w1") as worker:
        assert [await claimed(worker, room) for _ in range(5)] == [[other] for other in others]


async def test_kv_tokens_count_down_within_one_claim(producer: Producer, worker: Consumer) -> None:
    ids = await submit(producer, 3, forecast=Forecast(10, 30, 1.0, 40))
    assert await claimed(worker, Room(3, kv_tokens=100, kv_total_tokens=100)) == ids[:2]


async def test_reserved_slots_are_left_to_interactive_jobs(producer: Producer, worker: Consumer) -> None:
    batch = await submit(producer, 2, service_class=P2)
    found = await worker.claim(Room(2, bulk_slots=1))
    assert [lease.job_id for lease in found.leases] == batch[:1]
    assert found.passed
    [urgent] = await submit(producer, service_class=P1)
    assert await claimed(worker, Room(1, bulk_slots=0)) == [urgent]


async def test_job_is_left_to_the_worker_that_has_its_prefix(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    async with alive(pipe, redis_url, name="w1") as first, alive(pipe, redis_url, name="w2") as second:
        [begun] = await submit(producer, prefix="aa,bb")
        assert await claimed(first, 1) == [begun]
        [same] = await submit(producer, prefix="aa,cc")
        left = await second.claim(BUSY)
        assert (left.leases, left.passed) == ([], True)
        assert left.next_due_s is not None
        assert 900 < left.next_due_s <= 1000
        assert backdoor.members("marker:w1") == ["work"], "the other worker is woken"
        assert await claimed(first, 1) == [same]
        stats = backdoor.stats()
        assert (stats["missed:0"], stats["local:0"]) == ("1", "1")


@pytest.mark.parametrize("reason", ["patience", "death"])
async def test_job_is_stolen_when_it_has_waited_or_the_other_worker_is_gone(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor, reason: str
) -> None:
    async with alive(pipe, redis_url, name="w1") as first, alive(pipe, redis_url, name="w2") as second:
        [begun] = await submit(producer, prefix="aa")
        assert await claimed(first, 1) == [begun]
        [same] = await submit(producer, prefix="aa")
        if reason == "patience":
            backdoor.ask("HSET", KEYS.job(same), "created", LONG_AGO)
        else:
            backdoor.ask("ZADD", KEYS.named("workers"), "XX", LONG_AGO, "w1")
        assert await claimed(second, 1) == [same]
        assert backdoor.stats().get("stolen:0") == ("1" if reason == "patience" else None)


async def test_tenant_at_its_cap_holds_up_nobody_and_goes_on_when_one_ends(
    producer: Producer, worker: Consumer, backdoor: Backdoor
) -> None:
    mine = await submit(producer, 3, tenant="a", tenant_cap=1)
    [other] = await submit(producer, tenant="b", tenant_cap=1)
    first, second = (await worker.claim(4)).leases
    assert [first.job_id, second.job_id] == [mine[0], other]
    assert backdoor.members("capped:a") == mine[1:]
    await worker.release(first, Return("drain"))
    assert await claimed(worker, 4) == [mine[0]], "its place is before theirs"
    await producer.cancel(mine[0])
    assert await claimed(worker, 4) == [mine[1]]
    await producer.cancel(mine[2])
    assert backdoor.members("capped:a") == []
    await producer.cancel(mine[1])
    await producer.cancel(other)
    assert backdoor.ask("EXISTS", KEYS.named("running")) == 0


async def test_paused_pool_gives_nothing_and_goes_on_after(
    pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    [job_id] = await submit(producer)
    await steer_pool(pipe, [POOL], wish=Wish.PAUSE)
    found = await worker.claim(1)
    assert (found.leases, found.more, found.passed) == ([], False, False)
    await steer_pool(pipe, [POOL], wish=Wish.RESUME)
    assert await claimed(worker, 1) == [job_id]


async def test_batch_prompts_share_the_prefill_budget_and_a_longer_one_is_read_alone(
    producer: Producer, worker: Consumer
) -> None:
    long, short, chat = [
        (await submit(producer, service_class=c, forecast=Forecast(tokens, 1, at)))[0]
        for at, (c, tokens) in enumerate([(P2, 900), (P2, 80), (P0, 5000)])
    ]
    assert await claimed(worker, Room(4, prefill_tokens=50, prefill_total_tokens=100)) == [chat]
    assert await claimed(worker, Room(4, prefill_tokens=90, prefill_total_tokens=100)) == [short]
    [next_one] = await submit(producer, service_class=P2, forecast=Forecast(10, 1, 9.0))
    assert await claimed(worker, Room(4, prefill_tokens=100, prefill_total_tokens=100)) == [long]
    assert await claimed(worker, Room(4, prefill_tokens=100, prefill_total_tokens=100)) == [next_one]


async def test_choices_take_a_slot_each_and_are_waited_for_like_a_big_job(
    producer: Producer, worker: Consumer
) -> None:
    [double] = await submit(producer, choices=2, forecast=Forecast(1, 1, 0.0))
    singles = await submit(producer, 4, forecast=Forecast(1, 1, 1.0))
    assert await claimed(worker, Room(1, total_slots=4)) == singles[:1]
    leases = (await worker.claim(Room(3, total_slots=4))).leases
    assert [(lease.job_id, lease.choices) for lease in leases] == [(double, 2), (singles[1], 1)]
    [huge] = await submit(producer, choices=9, forecast=Forecast(1, 1, 0.0))
    assert await claimed(worker, Room(4, total_slots=4)) == [huge], "more choices than slots take them all"


async def test_idle_engine_takes_one_job_of_any_size_and_then_what_fits(
    producer: Producer, worker: Consumer
) -> None:
    [huge] = await submit(producer, forecast=Forecast(900, 0, 0.0, 900))
    small = await submit(producer, 2, forecast=Forecast(10, 0, 1.0, 50))
    assert await claimed(worker, Room(4, kv_tokens=500, kv_total_tokens=500)) == [huge]
    assert await claimed(worker, Room(4, kv_tokens=60, kv_total_tokens=500)) == small[:1]
