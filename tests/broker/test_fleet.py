"""What the fleet looks like from outside: workers by their heartbeats, sets by their sizes, counters as counted."""

from dataclasses import replace

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import WorkerRecord, announce_pool, forget_pools, known_pools, look, oldest_s
from broker.keys import PoolKeys
from broker.producer import Producer
from broker.scripts import Beat, Ending, Return
from tests.broker.jobs import ERROR, KEYS, POOL, Backdoor, submission

RECORD = WorkerRecord(
    worker_id="w1",
    pool=POOL,
    engine="llamacpp",
    model="m",
    slots=8,
    busy_slots=2,
    state="ready",
    pid=1,
    host="h",
)


def test_record_reads_back() -> None:
    assert WorkerRecord.load(RECORD.dump()) == RECORD


def test_record_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    assert WorkerRecord.load(RECORD.dump()[:-1] + b',"invented_later":1}') == RECORD


async def test_pools_are_known_once_announced(pipe: Pipe) -> None:
    for pool in ("small", "large", "small"):
        await announce_pool(pipe, pool)
    assert await known_pools(pipe) == ["large", "small"]


async def test_empty_pool_is_empty(pipe: Pipe) -> None:
    seen = await look(pipe, POOL)
    assert (seen.workers, seen.waiting, seen.delayed, seen.running, seen.dead) == ([], [0, 0, 0, 0], 0, 0, 0)
    assert (seen.slots, seen.mean_run_s, seen.counters) == (0, None, {})


async def test_look_counts_every_set(pipe: Pipe, producer: Producer, worker: Consumer) -> None:
    await producer.submit_many([submission(service_class=c) for c in (0, 0, 0, 1, 3, 3)])
    await producer.submit(submission(hold_s=100.0))
    done, _ = (await worker.claim(2)).leases
    await worker.finish(done, Ending(succeeded=True, data=b"{}", prompt_tokens=2, output_tokens=3))
    seen = await look(pipe, POOL)
    assert (seen.waiting, seen.delayed, seen.running, seen.dead) == ([1, 1, 0, 2], 1, 1, 0)
    counted = {name: seen.counters[name] for name in ("enqueued:0", "claimed:0", "succeeded:0")}
    assert counted == {"enqueued:0": 4, "claimed:0": 2, "succeeded:0": 1}
    assert seen.mean_run_s is not None


async def test_every_job_is_in_the_counters_once(pipe: Pipe, producer: Producer, worker: Consumer) -> None:
    """Accepted = waiting + delayed + running + ended, whatever happened in between."""
    await producer.submit_many([submission() for _ in range(8)])
    leases = (await worker.claim(5)).leases
    await worker.finish(leases[0], Ending(succeeded=True, data=b"{}"))
    await worker.finish(leases[1], Ending(succeeded=False, data=ERROR))
    await worker.release(leases[2], Return("error", delay_s=100.0, error=ERROR))
    await producer.cancel(leases[3].job_id)
    seen = await look(pipe, POOL)
    ended = sum(
        seen.counters.get(f"{status}:0", 0) for status in ("succeeded", "failed", "cancelled", "expired")
    )
    assert seen.counters["enqueued:0"] == sum(seen.waiting) + seen.delayed + seen.running + ended == 8


async def test_only_ready_workers_have_slots_to_give(pipe: Pipe) -> None:
    for name, state in (("w1", "ready"), ("w2", "draining"), ("w3", "ready")):
        record = WorkerRecord.load(
            RECORD.dump().replace(b'"w1"', f'"{name}"'.encode()).replace(b"ready", state.encode())
        )
        await pipe.run(scripts.renew(POOL, Beat(name, record.dump(), (), 10.0)))
    seen = await look(pipe, POOL)
    assert sorted(worker.worker_id for worker in seen.workers) == ["w1", "w2", "w3"]
    assert seen.slots == 16


async def test_worker_whose_record_ran_out_is_not_shown(pipe: Pipe, backdoor: Backdoor) -> None:
    await pipe.run(scripts.renew(POOL, Beat("w1", RECORD.dump(), (), 10.0)))
    backdoor.ask("DEL", KEYS.worker("w1"))
    assert (await look(pipe, POOL)).workers == []


async def test_a_pool_without_workers_and_jobs_is_forgotten_once_its_use_is_long_ago(
    pipe: Pipe, producer: Producer, backdoor: Backdoor
) -> None:
    for pool in ("slip", POOL, "fresh"):
        await announce_pool(pipe, pool)
    await producer.submit(submission())
    for pool in ("slip", POOL):
        backdoor.ask("DEL", PoolKeys(pool).named("used"))
    assert await forget_pools(pipe) == 1
    assert await known_pools(pipe) == sorted(("fresh", POOL))
    assert backdoor.ask("TTL", KEYS.named("used")) > 0


async def test_the_oldest_of_each_class_is_found_wherever_it_waits(
    pipe: Pipe, producer: Producer, backdoor: Backdoor
) -> None:
    jobs = {age_s: submission(service_class=c) for age_s, c in ((40, 0), (5, 0), (900, 2))}
    await producer.submit_many(list(jobs.values()))
    now_s = int(backdoor.ask("TIME")[0])
    for age_s, job in jobs.items():
        backdoor.ask("HSET", KEYS.job(job.job_id), "created", (now_s - age_s) * 1000)
    promoted = jobs[900].job_id
    backdoor.ask("ZREM", KEYS.ready(2), promoted)
    backdoor.ask("ZADD", KEYS.named("aged:1"), 1, promoted)
    ages = await oldest_s(pipe, [POOL, "nowhere"])
    assert [age and round(age, -1) for age in ages] == [40, None, 900, None]


async def test_why_passes_were_handed_on_and_how_verdicts_fell_is_counted(
    pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    await producer.submit_many([submission() for _ in range(3)])
    unsure, sure, broken = (await worker.claim(3)).leases
    on = Ending(succeeded=False, data=b"", heir="job_x.large", why="low_confidence", confidence=0.2)
    await worker.finish(unsure, on)
    await worker.finish(sure, Ending(succeeded=True, data=b"{}", confidence=0.9))
    await worker.finish(broken, replace(on, why="engine_error", confidence=None))
    counters = (await look(pipe, POOL)).counters
    found = {name: n for name, n in counters.items() if name.startswith(("handed_on:", "judged:"))}
    assert found == {
        "handed_on:low_confidence": 1,
        "handed_on:engine_error": 1,
        "judged:escalated": 1,
        "judged:succeeded": 1,
    }
