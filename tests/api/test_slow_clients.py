"""Clients that send or read slowly: cut when their time is over, at the cost of nobody else."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import orjson
import pytest
import pytest_asyncio
import redis

from api.cli.redis_server import RedisServer
from api.patience import Patience, ReaderLimit
from broker.consumer import Chunk
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, chat, chunk_payload, serve
from tests.api.wire import BODY, Wire, dial, post
from tests.conditions import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
JOBS = "/v1/jobs"
LARGE = chunk_payload("x" * 100_000)
PIECES = 80  # far more than what the kernel and the transport hold
DRIP_S = 0.01
HURRY = Patience(head_s=0.1, body_s=0.1, read_s=0.15, bytes_per_s=1.0, linger_s=0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(redis_server: RedisServer) -> AsyncIterator[Served]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    async with serve(Settings(redis_url=redis_server.url, ping_s=0.05)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def worker(served: Served) -> AsyncIterator[ScriptedWorker]:
    joined = await ScriptedWorker.join(served.redis_url, "small")
    yield joined
    await joined.close()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules, with less time."""
    monkeypatch.setattr(ReaderLimit, "patience", HURRY)


async def drip(wire: Wire, pieces: Iterator[bytes]) -> bytes:
    """Sends a piece now and then until the server says something; what it says until it closes."""
    answer = asyncio.create_task(wire.ends())
    while not answer.done():
        wire.writer.write(next(pieces))
        await asyncio.wait({answer}, timeout=DRIP_S)
    return answer.result()


def said(text: bytes) -> tuple[int, str]:
    """Status and code of an error."""
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), orjson.loads(body)["error"]["code"]


def forever(first: bytes, then: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield then


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("then", [b"x-a: b\r\n", b"x"])
async def test_a_head_that_does_not_end_is_408(served: Served, *, then: bytes) -> None:
    async with dial(served) as wire:
        text = await drip(wire, forever(b"GET /healthz HTTP/1.1\r\nhost: x\r\n", then))
    assert said(text) == (408, "request_timeout")


@pytest.mark.usefixtures("hurry")
async def test_empty_lines_are_no_request(served: Served) -> None:
    async with dial(served) as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await wire.answer()).status == 200
        assert await drip(wire, forever(b"\r\n", b"\r\n")) == b""


@pytest.mark.usefixtures("hurry")
async def test_a_connection_that_asks_nothing_is_closed_without_a_word(served: Served) -> None:
    async with dial(served) as wire:
        assert await wire.ends() == b""


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("path", [CHAT, JOBS, "/v1/files"])
async def test_a_body_that_does_not_come_is_408_and_queues_nothing(served: Served, *, path: str) -> None:
    head = post(
        path, "content-type: multipart/form-data; boundary=b", "content-length: 100", body=b"", length=False
    )
    async with dial(served) as wire:
        await wire.send(head)
        assert said(await wire.ends()) == (408, "request_timeout")
    assert await served.pipe.command("KEYS", "hw:*job:*") == []


@pytest.mark.usefixtures("hurry")
async def test_bytes_that_are_no_body_give_no_time(served: Served) -> None:
    """A chunk may have an extension of any length, which nobody wants."""
    head = post(JOBS, "transfer-encoding: chunked", body=b"5;", length=False)
    async with dial(served) as wire:
        assert said(await drip(wire, forever(head, b"extension" * 10))) == (408, "request_timeout")


@pytest.mark.usefixtures("hurry")
async def test_a_body_that_comes_slowly_but_steadily_is_taken(served: Served) -> None:
    async with dial(served) as wire:
        head, body = post(JOBS, f"content-length: {len(BODY)}", body=b"", length=False), BODY
        await wire.send(head)
        for place in range(0, len(body), 4):  # some 15 pieces, and each gives seconds
            await wire.send(body[place : place + 4])
            await asyncio.sleep(HURRY.body_s / 10)
        answer = await wire.answer()
    assert answer.status == 202
    await served.http.delete(f"{JOBS}/{orjson.loads(answer.body)['id']}")


@pytest.mark.usefixtures("hurry")
async def test_the_rest_of_a_refused_body_is_not_waited_for(served: Served) -> None:
    async with dial(served) as wire:
        await wire.send(post(JOBS, "content-length: 999999999", body=b"x", length=False))
        assert (await wire.answer()).status == 413
        assert await wire.ends() == b""


async def test_a_connection_goes_on_when_the_rest_of_a_refused_body_comes(served: Served) -> None:
    body = b"x" * 200_000
    request = post(JOBS, "content-encoding: br", f"content-length: {len(body)}", body=b"", length=False)
    async with dial(served) as wire:
        await wire.send(request)
        assert (await wire.answer()).status == 415
        await wire.send(body + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await wire.answer()).status == 200


async def fill(worker: ScriptedWorker) -> str:
    """Streams more to the next job's reader than anybody keeps for it, unless the job ends meanwhile; its id."""
    lease = await worker.claim()
    for seq in range(1, PIECES + 1):
        [taken] = await worker.consumer.append([Chunk(lease.job_id, lease.token, seq=seq, data=LARGE)])
        if not taken:
            break
    return lease.job_id


@pytest.mark.usefixtures("hurry")
async def test_an_answer_that_nobody_reads_ends_with_its_job(served: Served, worker: ScriptedWorker) -> None:
    """As if the client had hung up."""
    async with dial(served, receive_bytes=4096) as wire:
        await wire.send(post(CHAT, body=orjson.dumps(chat(stream=True))))
        job_id = await fill(worker)

        async def cancelled() -> bool:
            return await served.status(job_id) == "cancelled"

        await wait_until(cancelled, what="the job to be cancelled")


@pytest.mark.usefixtures("hurry")
async def test_a_watcher_that_does_not_read_is_cut_and_its_job_runs_on(
    served: Served, worker: ScriptedWorker
) -> None:
    job_id = (await served.http.post(JOBS, json=chat(**{"class": "P1"}))).json()["id"]
    async with dial(served, receive_bytes=4096) as wire:
        await wire.send(f"GET {JOBS}/{job_id}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (await wire.head()).status == 200
        await fill(worker)
        channel = f"hw:*out:{job_id}"

        async def unwatched() -> bool:
            return not await served.pipe.command("PUBSUB", "CHANNELS", channel)

        await wait_until(unwatched, what="the watcher to be gone")
    assert await served.status(job_id) == "running"
    await worker.finish(worker.leases[-1], b"{}")
    after = f"{worker.leases[-1].token}-{PIECES - 1}"
    response = await served.http.get(f"{JOBS}/{job_id}/events", params={"after": after})
    assert response.text.count("event: chunk") == 1, "it goes on where it was"
    assert "event: done" in response.text


async def test_a_reader_that_stands_still_holds_up_nobody(served: Served, worker: ScriptedWorker) -> None:
    job_id = (await served.http.post(JOBS, json=chat(**{"class": "P1"}))).json()["id"]
    events = f"GET {JOBS}/{job_id}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    async with dial(served, receive_bytes=4096) as still:
        await still.send(events)
        assert (await still.head()).status == 200
        reading = asyncio.create_task(served.http.get(f"{JOBS}/{job_id}/events"))
        await fill(worker)
        await worker.finish(worker.leases[-1], b"{}")
        text = (await reading).text
        assert text.count("event: chunk") == PIECES
        assert await served.pipe.command("PUBSUB", "CHANNELS", f"hw:*out:{job_id}"), (
            "the other is still there"
        )
