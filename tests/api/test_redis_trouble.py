"""The API while Redis is cut off, hangs, is full or takes no writes: refused fast, and well again by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from api import snapshots
from api.cli.redis_server import free_port
from broker import ear, following, producer
from broker.errors import RedisAway
from broker.keys import PoolKeys
from broker.scripts import Ending
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, chat, chunk_payload, serve, whole_answer
from tests.api.test_events import events_of, texts
from tests.broker.jobs import Backdoor
from tests.conditions import wait_until
from tests.tcp_proxy import TcpProxy

CHAT = "/v1/chat/completions"
TIMEOUT_S = 0.8


@pytest.fixture
async def far(proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """The API beyond the proxy; its patience is short."""
    monkeypatch.setattr(producer, "SUBMIT_PATIENCE_S", 0.05)
    monkeypatch.setattr(ear, "SILENT_S", 0.1)
    url = f"redis://127.0.0.1:{proxy.port}/0"
    async with serve(Settings(redis_url=url, redis_timeout_s=TIMEOUT_S, ping_s=0.05)) as running:
        yield running
        proxy.let_pass()


@pytest.fixture
def backdoor(redis_url: str) -> Iterator[Backdoor]:
    with redis.Redis.from_url(redis_url) as client:
        yield Backdoor(client)


async def asked(served: Served) -> list[tuple[int, str]]:
    """What each kind of request is answered, as (status, code)."""
    keyed = {"Idempotency-Key": "k"}
    answers = [
        await served.http.post(CHAT, json=chat()),
        await served.http.post(CHAT, json=chat(stream=True)),
        await served.http.post(CHAT, json=chat(), headers=keyed),
        await served.http.post("/v1/jobs", json=chat()),
        await served.http.get("/v1/jobs"),
    ]
    for answer in answers:
        assert int(answer.headers["retry-after"]) >= 1
        assert "Redis" in answer.json()["error"]["message"] or "memory" in answer.json()["error"]["message"]
    return [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]


async def tried(served: Served) -> list[object]:
    """What those who submit are told, and the status of a list."""
    posts = [(CHAT, chat()), (CHAT, chat(stream=True)), ("/v1/jobs", chat())]
    answers = [await served.http.post(path, json=body) for path, body in posts]
    found = [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]
    return [*found, (await served.http.get("/v1/jobs")).status_code]


async def queued(served: Served) -> str:
    """A job's id, as soon as the API has found Redis again."""

    async def accepted() -> str:
        response = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}))
        return str(response.json()["id"]) if response.status_code == 202 else ""

    return str(await wait_until(accepted))


async def answered(served: Served, worker: ScriptedWorker) -> None:
    """A job and a chat get through."""
    await queued(served)
    await worker.finish(await worker.claim(), whole_answer("of the job"))
    asking = asyncio.create_task(served.http.post(CHAT, json=chat()))
    await worker.finish(await worker.claim(), whole_answer("after all"))
    assert (await asking).content == whole_answer("after all")


async def test_while_redis_hangs_all_requests_together_wait_for_one_time_out(
    far: Served, proxy: TcpProxy, worker: ScriptedWorker
) -> None:
    """The first one finds that it hangs; those after it are refused at once."""
    await far.fresh()
    proxy.stall()
    too_late = asyncio.create_task(asyncio.sleep(2.5 * TIMEOUT_S))
    asking = asyncio.create_task(asked(far))
    await asyncio.wait({asking, too_late}, return_when=asyncio.FIRST_COMPLETED)
    assert not too_late.done()
    assert set(await asking) == {(503, "queue_unavailable")}
    assert (await far.http.get("/healthz")).status_code == 200
    assert (await far.http.get("/readyz")).status_code == 503
    proxy.let_pass()
    await answered(far, worker)


async def test_while_redis_is_cut_off_requests_are_refused_and_then_served_again(
    far: Served, proxy: TcpProxy, worker: ScriptedWorker
) -> None:
    await far.fresh()
    proxy.cut()
    assert set(await asked(far)) == {(503, "queue_unavailable")}
    proxy.let_pass()
    await answered(far, worker)


async def test_a_chat_right_after_an_outage_waits_for_workers_whose_records_have_expired_in_it(
    far: Served, proxy: TcpProxy, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "STALE_S", 0.0)
    proxy.cut()

    async def noticed() -> bool:
        return (await far.http.get("/v1/fleet")).status_code == 503

    await wait_until(noticed)
    await worker.consumer.leave()
    proxy.let_pass()

    async def accepted() -> int:
        return int(await worker.pipe.command("ZCARD", PoolKeys("small").ready(0)))

    asking = asyncio.create_task(far.http.post(CHAT, json=chat()))
    await wait_until(accepted)
    await worker.finish(await worker.claim(), whole_answer("after all"))
    assert (await asking).content == whole_answer("after all")


async def test_while_redis_is_a_replica_requests_are_refused_and_then_served_again(
    far: Served, worker: ScriptedWorker, backdoor: Backdoor
) -> None:
    await far.fresh()
    backdoor.ask("REPLICAOF", "127.0.0.1", free_port())
    try:
        *submits, listed = await tried(far)
    finally:
        backdoor.ask("REPLICAOF", "NO", "ONE")
    assert set(submits) == {(503, "queue_unavailable")}
    assert listed == 200, "what can be read is read"
    await answered(far, worker)


async def test_with_memory_full_new_work_is_refused_what_runs_is_answered_and_then_all_is_well(
    far: Served, worker: ScriptedWorker, backdoor: Backdoor
) -> None:
    await far.fresh()
    running = asyncio.create_task(far.http.post(CHAT, json=chat(stream=True)))
    lease = await worker.claim()
    backdoor.fill_memory()
    try:
        *submits, listed = await tried(far)
        await worker.append(lease, chunk_payload("still "), chunk_payload("answered"), seq=2)
        await worker.consumer.finish(lease, Ending(succeeded=True, data=b""))
        text = (await running).text
    finally:
        backdoor.free_memory()
    assert set(submits) == {(503, "memory_full")}
    assert listed == 200
    assert text.index("still ") < text.index("answered") < text.index("[DONE]")
    await answered(far, worker)


async def watch(served: Served, job_id: str, seen: list[bytes], *, after: str = "") -> None:
    headers = {"Last-Event-ID": after} if after else {}
    async with served.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        async for data in response.aiter_bytes():
            seen += [data]


def chunks(seen: list[bytes]) -> list[tuple[str | None, str]]:
    whole, _, _ = b"".join(seen).rpartition(b"\n\n")
    return texts(events_of(whole.decode()))


@pytest.mark.parametrize("patience_s", [0.0, 10.0])
async def test_a_watcher_gets_every_chunk_once_over_an_outage(
    far: Served, proxy: TcpProxy, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """In one stream if the outage is short; else it is told to come again, and goes on after its last event."""
    monkeypatch.setattr(following, "PATIENCE_S", patience_s)
    job_id = await queued(far)
    lease, seen = await worker.claim(), list[bytes]()
    watching = asyncio.create_task(watch(far, job_id, seen))
    await worker.append(lease, chunk_payload("0"), chunk_payload("1"), seq=2)
    await wait_until(lambda: len(chunks(seen)) == 2)
    proxy.cut()
    await worker.append(lease, chunk_payload("2"), seq=3)
    if patience_s:
        with pytest.raises(RedisAway):
            await far.producer.get(job_id)
    else:
        # what was missed is looked up when the subscription is there again, before the other connection is
        monkeypatch.setattr("broker.following._replay", away)
    proxy.let_pass()
    if not patience_s:
        await watching
        assert b": interrupted, please reconnect" in b"".join(seen)
        assert not [name for name, *_ in events_of(b"".join(seen).decode()) if name == "done"]
        monkeypatch.undo()
        last = chunks(seen)[-1][0]
        watching = asyncio.create_task(watch(far, job_id, seen, after=last or ""))
    await worker.append(lease, chunk_payload("3"), seq=4)
    await worker.finish(lease, whole_answer("0123"))
    await watching
    assert chunks(seen) == [(f"{lease.token}-{n + 1}", str(n)) for n in range(4)]
    assert events_of(b"".join(seen).decode())[-1][0] == "done"


async def away(*_: object, **__: object) -> AsyncIterator[object]:
    raise RedisAway("as long as the test says")
    yield


async def test_watchers_live_on_when_their_subscription_is_swallowed(
    far: Served, proxy: TcpProxy, worker: ScriptedWorker
) -> None:
    """A job's watcher and a waiting chat, of a process whose connections the network has forgotten."""
    asking = asyncio.create_task(far.http.post(CHAT, json=chat(stream=True)))
    lease, seen = await worker.claim(), list[bytes]()
    watching = asyncio.create_task(watch(far, lease.job_id, seen))
    await worker.append(lease, chunk_payload("a"), seq=1)
    await wait_until(lambda: len(chunks(seen)) == 1)
    proxy.swallow()
    await worker.append(lease, chunk_payload("b"), seq=2)
    await worker.finish(lease)
    await watching
    assert [text for _, text in chunks(seen)] == ["a", "b"]
    answer = (await asking).text
    assert answer.index('"a"') < answer.index('"b"') < answer.index("[DONE]")


async def test_a_waiting_caller_that_leaves_during_an_outage_leaves_nothing_running(
    far: Served, proxy: TcpProxy, worker: ScriptedWorker, backdoor: Backdoor
) -> None:
    asking = asyncio.create_task(far.http.post(CHAT, json=chat()))
    lease = await worker.claim()
    proxy.stall()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    proxy.let_pass()
    await wait_until(lambda: backdoor.status(lease.job_id) == "cancelled")
