"""A pool of several queues looks like any other through the API."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker import fleet, scripts
from broker.config import Config, ModelConfig
from broker.fleet import WorkerRecord
from broker.job import queue_of
from broker.settings import Settings
from broker.shards import queues_of
from predictor.prefix import conversation_key
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer
from tests.broker.jobs import end_everything

FOUR = queues_of("hot", 4)
CONFIG = Config(models=(ModelConfig(pool="hot", shards=4, aliases=("chat",)),))


@pytest.fixture
async def sharded(settings: Settings) -> AsyncIterator[Served]:
    async with serve(settings, config=CONFIG) as running:
        yield running
        await end_everything(running.pipe)


def job(text: str, **fields: object) -> dict[str, object]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], "class": "P1", **fields}


async def submitted(sharded: Served, count: int, **fields: object) -> list[str]:
    answers = [await sharded.http.post("/v1/jobs", json=job(f"question {n}", **fields)) for n in range(count)]
    assert {answer.status_code for answer in answers} == {202}
    assert {answer.json()["pool"] for answer in answers} == {"hot"}
    return [answer.json()["id"] for answer in answers]


async def test_jobs_spread_over_the_shards_and_are_listed_as_one_pool(sharded: Served) -> None:
    ids = await submitted(sharded, 24)
    assert {queue_of(job_id) for job_id in ids} == set(FOUR)
    listed, after = list[str](), ""
    while True:
        page = (await sharded.http.get(f"/v1/jobs?limit=10{after}")).json()
        listed += [one["id"] for one in page["data"]]
        assert {one["pool"] for one in page["data"]} == {"hot"}
        if not page["has_more"]:
            break
        after = f"&after={listed[-1]}"
    assert listed == ids[::-1]


async def test_a_job_is_found_and_cancelled_by_its_id(sharded: Served) -> None:
    for job_id in await submitted(sharded, 4):
        assert (await sharded.http.get(f"/v1/jobs/{job_id}")).json()["status"] == "queued"
        assert (await sharded.http.delete(f"/v1/jobs/{job_id}")).json()["status"] == "cancelled"


async def test_turns_of_a_conversation_meet_in_one_shard(sharded: Served) -> None:
    system = {"role": "system", "content": "You are terse."}
    queues = set()
    for number in range(12):
        turns = [system, {"role": "user", "content": f"Hello, I am number {number}."}]
        met = set()
        for _ in range(3):
            answer = await sharded.http.post("/v1/jobs", json=job("", messages=turns))
            met.add(queue_of(answer.json()["id"]))
            turns += [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Go on."}]
        assert len(met) == 1
        queues |= met
    assert queues == set(FOUR)


async def test_prompts_without_turns_go_round(sharded: Served) -> None:
    body = {"model": "hot", "prompt": "the same"}
    ids = [(await sharded.http.post("/v1/jobs", json=body)).json()["id"] for _ in range(8)]
    assert sorted(queue_of(job_id) for job_id in ids) == sorted(FOUR * 2)


async def test_events_of_a_shards_job_are_streamed(sharded: Served, redis_url: str) -> None:
    [job_id] = await submitted(sharded, 1)
    worker = await ScriptedWorker.join(redis_url, queue_of(job_id))
    await worker.stream_next("a", "b")
    events = (await sharded.http.get(f"/v1/jobs/{job_id}/events")).text
    assert events.count("event: chunk") == 2
    assert '"pool":"hot"' in events
    await worker.close()


async def test_a_chat_is_answered_and_names_the_pool(sharded: Served, redis_url: str) -> None:
    body = chat(model="chat", stream=True)
    queue = CONFIG.shards.pick("hot", conversation_key(body))
    worker = await ScriptedWorker.join(redis_url, queue)
    await sharded.fresh()
    asking = asyncio.create_task(sharded.http.post("/v1/chat/completions", json=body))
    await worker.stream_next("hello")
    answer = await asking
    assert "hello" in answer.text
    assert answer.headers["x-headway-pool"] == "hot"
    assert queue_of(answer.headers["x-headway-job"]) == queue
    await worker.close()


async def test_the_fleet_shows_one_pool_its_shards_and_each_worker_once(sharded: Served) -> None:
    record = WorkerRecord("w1", "hot", "e", "m", 4, 1, "ready", 1, "h", home="hot~2")
    for queue in FOUR:
        await fleet.announce_pool(sharded.pipe, queue)
        await sharded.pipe.run(scripts.renew(queue, scripts.Beat("w1", record.dump(), (), 60.0)))
    await submitted(sharded, 8)
    await sharded.fresh()
    shown = (await sharded.http.get("/v1/fleet")).json()
    [pool] = shown["pools"]
    assert (pool["pool"], len(pool["workers"]), pool["slots"]) == ("hot", 1, 4)
    assert pool["waiting"]["P1"] == sum(shard["waiting"] for shard in pool["shards"]) == 8
    assert [shard["queue"] for shard in pool["shards"]] == list(FOUR)
    assert [model["id"] for model in (await sharded.http.get("/v1/models")).json()["data"]] == ["hot", "chat"]
    metrics = (await sharded.http.get("/metrics")).text
    assert 'headway_queue_jobs{class="P1",pool="hot"} 8.0' in metrics
    assert "hot~" not in metrics
    for queue in FOUR:
        await sharded.pipe.command("DEL", f"hw:{{{queue}}}:worker:w1")


async def test_pausing_and_resuming_reach_every_shard(sharded: Served, redis_url: str) -> None:
    assert (await sharded.http.post("/v1/fleet/chat/pause")).json()["paused"] is True
    [job_id] = await submitted(sharded, 1)
    worker = await ScriptedWorker.join(redis_url, queue_of(job_id))
    assert not (await worker.consumer.claim(1)).leases
    assert (await sharded.http.post("/v1/fleet/hot/resume")).json()["paused"] is False
    assert len((await worker.consumer.claim(1)).leases) == 1
    await worker.close()


async def test_dead_letters_of_every_shard_are_listed_and_redriven(sharded: Served, redis_url: str) -> None:
    ids = await submitted(sharded, 6)
    for queue in {queue_of(job_id) for job_id in ids}:
        worker = await ScriptedWorker.join(redis_url, queue)
        for _ in [job_id for job_id in ids if queue_of(job_id) == queue]:
            await worker.bury(await worker.claim(), b'{"message":"broken"}')
        await worker.close()
    dead = (await sharded.http.get("/v1/jobs?dead=true")).json()["data"]
    assert {one["id"] for one in dead} == set(ids)
    again = await sharded.http.post(f"/v1/jobs/{ids[0]}/redrive")
    assert again.status_code == 202
    assert queue_of(again.json()["id"]) == queue_of(ids[0])


async def test_a_shard_is_no_model(sharded: Served) -> None:
    await submitted(sharded, 1)
    for name in ("hot~0", "hot~1"):
        assert (await sharded.http.post("/v1/jobs", json=job("hi", model=name))).status_code == 404


async def test_jobs_of_a_layout_that_is_gone_are_still_there(settings: Settings) -> None:
    """Four shards, then none: what waits is listed, found and cancelled."""
    async with serve(settings, config=CONFIG) as before:
        ids = await submitted(before, 6)
    async with serve(settings, config=Config(models=(ModelConfig(pool="hot", aliases=("chat",)),))) as after:
        ids += await submitted(after, 1)
        assert queue_of(ids[-1]) == "hot"
        listed = (await after.http.get("/v1/jobs")).json()["data"]
        assert {one["id"] for one in listed} == set(ids)
        await after.fresh()
        [pool] = (await after.http.get("/v1/fleet")).json()["pools"]
        assert pool["waiting"]["P1"] == 7
        for job_id in ids:
            assert (await after.http.delete(f"/v1/jobs/{job_id}")).status_code == 200


async def test_an_idempotency_key_stays_with_its_job(sharded: Served) -> None:
    body, headers = {"model": "hot", "prompt": "the same"}, {"Idempotency-Key": "k"}
    first = await sharded.http.post("/v1/jobs", json=body, headers=headers)
    second = await sharded.http.post("/v1/jobs", json=body, headers=headers)
    assert first.json()["id"] == second.json()["id"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/chat/completions"])
async def test_what_a_full_shard_refuses_goes_to_another_one_until_the_pool_has_what_it_takes(
    settings: Settings, redis_url: str, path: str
) -> None:
    """One conversation, of which every turn would go to the same shard; four jobs of the pool, one of each shard."""
    async with serve(settings.model_copy(update={"max_queued": 4}), config=CONFIG) as served:
        workers = [await ScriptedWorker.join(redis_url, queue) for queue in FOUR]
        await served.fresh()
        body = job("the same") if path == "/v1/jobs" else chat(model="chat")
        asking = [asyncio.create_task(served.http.post(path, json=body)) for _ in range(4)]
        for worker in workers:
            await worker.finish(await worker.claim(), whole_answer("from each"))
        if path == "/v1/jobs":
            assert {(await answer).status_code for answer in asking} == {202}
            assert {queue_of((await answer).json()["id"]) for answer in asking} == set(FOUR)
        else:
            assert {(await answer).content for answer in asking} == {whole_answer("from each")}
            assert {queue_of((await answer).headers["x-headway-job"]) for answer in asking} == set(FOUR)
        await asyncio.gather(*(worker.close() for worker in workers))


async def test_when_no_shard_has_room_the_pool_is_full(settings: Settings) -> None:
    async with serve(settings.model_copy(update={"max_queued": 4}), config=CONFIG) as served:
        answers = [await served.http.post("/v1/jobs", json=job("the same")) for _ in range(8)]
        taken = [queue_of(answer.json()["id"]) for answer in answers if answer.status_code == 202]
        said = [answer.json()["error"]["message"] for answer in answers if answer.status_code == 429]
        assert sorted(taken) == sorted(FOUR)
        assert len(said) == 4
        assert all("1 jobs wait in shard" in each and "another shard" not in each for each in said)
        await end_everything(served.pipe)
