"""Workers of several queues, on a real Redis: who takes which job, who is woken, and what changing the shards loses."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import WorkerRecord, announce_pool, look, look_at
from broker.job import ServiceClass, Submission, new_job_id, queue_of
from broker.keys import PoolKeys
from broker.policy import Asking, Room
from broker.producer import Producer
from broker.scripts import Beat, Ending, renew
from broker.served import Served, choose_home, home_first
from broker.shards import queues_of
from broker.stream import ReplyHub
from tests.broker.jobs import LIMITS, Backdoor, end_everything, submission
from tests.broker.stream_ends import Writer, numbered, payloads, read
from tests.conditions import wait_until

FOUR = queues_of("hot", 4)


@pytest.fixture(autouse=True)
async def nothing_left(pipe: Pipe) -> AsyncIterator[None]:
    yield
    await end_everything(pipe)


def job(queue: str, **changes: object) -> Submission:
    return submission(job_id=new_job_id(queue), **changes)


@asynccontextmanager
async def at_home(
    pipe: Pipe, url: str, home: str, *, queues: Iterable[str] = FOUR, asking: Asking | None = None
) -> AsyncIterator[Consumer]:
    """A worker at home in one of its queues."""
    served = Served(home_first(tuple(queues), home))
    consumer = Consumer(pipe, url, pool=served, asking=asking or Asking(f"at-{home}"), limits=LIMITS)
    yield consumer
    await consumer.close()


async def claimed(worker: Consumer, *, rounds: int) -> list[str]:
    """The queues of the jobs that so many claims of one slot get."""
    found = []
    for _ in range(rounds):
        found += [queue_of(lease.job_id) for lease in (await worker.claim(1)).leases]
    return found


async def is_blocked(backdoor: Backdoor, workers: int = 1) -> bool:
    return bool(backdoor.ask("CLIENT", "LIST", "TYPE", "normal").count(b"cmd=bzpopmin") == workers)


async def test_an_idle_worker_of_any_home_is_woken_for_a_job_and_gets_it(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    async with at_home(pipe, redis_url, "hot~1") as worker:
        for queue in FOUR:
            assert not (await worker.claim(1)).leases
            waiting = asyncio.create_task(worker.wait(5.0))
            await wait_until(lambda: is_blocked(backdoor))
            await producer.submit(job(queue))
            await waiting
            assert await claimed(worker, rounds=1) == [queue]


async def test_workers_make_themselves_at_home_where_the_fewest_are(pipe: Pipe) -> None:
    homes = []
    for number in range(12):
        home = await choose_home(pipe, FOUR, worker_id=f"w{number}")
        record = WorkerRecord(f"w{number}", "hot", "e", "m", 4, 0, "ready", 1, "h", home=home)
        await pipe.run(renew(home, Beat(f"w{number}", record.dump(), (), 10.0)))
        homes.append(home)
    assert sorted(homes) == sorted(FOUR * 3)
    assert await choose_home(pipe, ["small"], worker_id="w") == "small"


async def test_home_is_served_first(pipe: Pipe, redis_url: str, producer: Producer) -> None:
    await producer.submit_many([job(queue) for queue in FOUR for _ in range(2)])
    async with at_home(pipe, redis_url, "hot~2") as worker:
        assert (await claimed(worker, rounds=2)) == ["hot~2", "hot~2"]
        assert sorted(await claimed(worker, rounds=12)) == [
            "hot~0",
            "hot~0",
            "hot~1",
            "hot~1",
            "hot~3",
            "hot~3",
        ]


async def test_no_shard_starves_though_no_worker_is_at_home_there(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    await producer.submit_many([job("hot~0") for _ in range(100)] + [job("hot~3")])
    async with at_home(pipe, redis_url, "hot~0") as worker:
        assert "hot~3" in await claimed(worker, rounds=30)


async def test_jobs_from_other_shards_are_counted_as_stolen(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    await producer.submit_many([job("hot~0"), job("hot~1"), job("hot~1")])
    async with at_home(pipe, redis_url, "hot~0", queues=FOUR[:2]) as worker:
        await worker.claim(4)
        await worker.claim(4)
    seen = await look_at(pipe, "hot", queues=FOUR)
    assert seen.counters["stolen_shard"] == 2
    assert "stolen_shard" not in (await look(pipe, "hot~0")).counters


async def test_one_job_wakes_one_worker_whatever_their_homes(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    async with at_home(pipe, redis_url, "hot~0") as one, at_home(pipe, redis_url, "hot~1") as two:
        waiting = {asyncio.create_task(worker.wait(5.0)) for worker in (one, two)}
        await wait_until(lambda: is_blocked(backdoor, 2))
        await producer.submit(job("hot~2"))
        woken, asleep = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (len(woken), len(asleep)) == (1, 1)
        await one.wake_another()
        await asyncio.gather(*asleep)


async def test_no_wake_up_is_lost_when_a_job_comes_home_meanwhile(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    """The worker took the marker of hot~1; then hot~0 gets a job, whose marker it finds next."""
    await producer.submit(job("hot~1"))
    async with at_home(pipe, redis_url, "hot~0", queues=FOUR[:2]) as worker:
        await worker.wait(5.0)
        await producer.submit(job("hot~0"))
        assert await claimed(worker, rounds=1) == ["hot~1"]
        await worker.wait(5.0)
        assert await claimed(worker, rounds=1) == ["hot~0"]


async def test_an_urgent_job_elsewhere_goes_before_batch_work_at_home(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    await producer.submit(job("hot~0", service_class=ServiceClass.P2))
    await producer.submit(job("hot~3"))
    async with at_home(pipe, redis_url, "hot~0") as worker:
        await worker.wait(5.0, for_all=False)  # as a full worker does
        assert await worker.urgent_s() is not None
        assert await claimed(worker, rounds=2) == ["hot~3", "hot~0"]


async def test_a_worker_that_holds_its_room_takes_nothing_from_other_queues(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    big = replace(submission().forecast, kv_tokens=900)
    waiting = job("hot~0", forecast=big)
    await producer.submit_many([waiting, job("hot~1")])
    backdoor.ask("HSET", PoolKeys("hot~0").job(waiting.job_id), "skips", 1000, "since", 1)
    room = Room(slots=2, kv_tokens=100, kv_total_tokens=1000, total_slots=4)
    async with at_home(pipe, redis_url, "hot~0", queues=FOUR[:2]) as worker:
        for _ in range(3):
            found = await worker.claim(room)
            assert (found.leases, found.passed) == ([], True)
        all_free = await worker.claim(Room(slots=2, kv_tokens=1000, kv_total_tokens=1000))
        assert [lease.job_id for lease in all_free.leases] == [waiting.job_id]
        assert await claimed(worker, rounds=1) == ["hot~1"]


async def test_ends_of_jobs_of_several_queues_are_reported_together(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    jobs = [job(queue) for queue in FOUR[:2]]
    await producer.submit_many(jobs)
    async with at_home(pipe, redis_url, "hot~0", queues=FOUR[:2]) as worker:
        leases = [*(await worker.claim(1)).leases, *(await worker.claim(1)).leases]
        stale = replace(leases[0], token=99)
        end = Ending(succeeded=True, data=b"{}")
        assert await worker.finish_many([(leases[0], end), (stale, end), (leases[1], end)]) == [
            True,
            False,
            True,
        ]


async def test_more_shards_lose_nothing_and_none_again_neither(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    """hot → hot~0…3 → hot: the queues of the layout before are served until they are empty."""
    for old, new in ((("hot",), FOUR), (FOUR, ("hot",)), (FOUR, FOUR[:2])):
        jobs = [job(queue) for queue in old for _ in range(2)]
        await producer.submit_many(jobs)
        served = Served(new)
        await served.refresh(pipe)
        assert set(served.queues) == {*old, *new}
        worker = Consumer(pipe, redis_url, pool=served, asking=Asking("w"), limits=LIMITS)
        found = [lease for _ in range(40) for lease in (await worker.claim(1)).leases]
        assert {lease.job_id for lease in found} == {one.job_id for one in jobs}
        await served.refresh(pipe)
        assert set(served.queues) == {*old, *new}  # what runs there may come back
        await asyncio.gather(*(producer.cancel(one.job_id) for one in jobs))
        await served.refresh(pipe)
        assert set(served.queues) == set(new)
        await worker.close()


async def test_a_job_whose_queue_no_worker_has_in_its_configuration_is_found(
    pipe: Pipe, producer: Producer
) -> None:
    """The API was restarted with more shards, the workers were not yet."""
    served = Served(["hot"])
    await announce_pool(pipe, "cold~0")
    await producer.submit(job("hot~7"))
    await served.refresh(pipe)
    assert served.queues == ("hot", "hot~7")


async def test_a_worker_of_two_pools_serves_the_first_first(
    pipe: Pipe, redis_url: str, producer: Producer
) -> None:
    await producer.submit_many([job("b"), job("b"), job("a")])
    async with at_home(pipe, redis_url, "a", queues=("a", "b")) as worker:
        assert await claimed(worker, rounds=3) == ["a", "b", "b"]
        assert "stolen_shard" not in (await look(pipe, "b")).counters


async def test_a_worker_is_known_to_have_room_at_home_only_and_not_once_it_has_stolen(
    pipe: Pipe, redis_url: str, producer: Producer, backdoor: Backdoor
) -> None:
    async with at_home(pipe, redis_url, "hot~0", queues=FOUR[:2]) as worker:
        await worker.claim(4)
        spare = [backdoor.ask("ZRANGE", PoolKeys(queue).named("spare"), 0, -1) for queue in FOUR[:2]]
        assert spare == [[b"at-hot~0"], []]
        await producer.submit(job("hot~1"))
        assert len((await worker.claim(4)).leases) == 1
        assert backdoor.ask("EXISTS", PoolKeys("hot~0").named("spare")) == 0


async def test_a_stream_of_a_shards_job_reaches_its_reader(
    pipe: Pipe, redis_url: str, producer: Producer, hub: ReplyHub
) -> None:
    asked = job("hot~2", stream=True)
    async with at_home(pipe, redis_url, "hot~0") as worker:
        with hub.mailbox(asked.job_id) as box:
            await producer.submit(replace(asked, reply_to=hub.address(asked.job_id)))
            await worker.wait(5.0)
            [lease] = (await worker.claim(1)).leases
            writer = Writer(worker, lease)
            reading = asyncio.create_task(read(pipe, box))
            await writer.write(3)
            await writer.finish()
            assert payloads(await reading) == numbered(1, 1, 3)
    view = await producer.get(asked.job_id)
    assert (view.pool, view.queue) == ("hot", "hot~2")
