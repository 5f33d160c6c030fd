"""A client that leaves takes its job with it (design, invariant 10): in every state, with and without streaming."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import orjson
import pytest
import redis.asyncio

from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, chat, chunk_payload, serve
from tests.conditions import wait_until

CHAT = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def connected(served: Served, **fields: object) -> AsyncIterator[socket.socket]:
    """A bare connection that has sent its request; leaving the block hangs up."""
    body = orjson.dumps(chat(**fields))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head + body)
    await writer.drain()
    try:
        yield writer.get_extra_info("socket")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        del reader


async def ready(served: Served) -> list[str]:
    return [name.decode() for name in await served.pipe.command("ZRANGE", "hw:{small}:ready:0", 0, -1)]


async def cancelled(served: Served, job_id: str) -> None:
    async def is_cancelled() -> bool:
        return await served.status(job_id) == "cancelled"

    await wait_until(is_cancelled, what=f"{job_id} to be cancelled")


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_queued_removes_the_job(
    served: Served, worker: ScriptedWorker, *, stream: bool
) -> None:
    async with connected(served, stream=stream):
        (job_id,) = await wait_until(lambda: ready(served), what="the job to be queued")
    await cancelled(served, job_id)
    assert await ready(served) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_running_aborts_the_lease(
    served: Served, worker: ScriptedWorker, *, stream: bool
) -> None:
    async with redis.asyncio.Redis.from_url(served.redis_url) as client, client.pubsub() as control:
        await control.subscribe("hw:{small}:control")
        async with connected(served, stream=stream):
            lease = await worker.claim()
        await cancelled(served, lease.job_id)
        told = await wait_until(lambda: control.get_message(ignore_subscribe_messages=True), what="an abort")
    assert told["data"] == f"abort {lease.job_id} {lease.token}".encode()


async def test_leaving_after_the_first_token_cancels_at_once(served: Served, worker: ScriptedWorker) -> None:
    async with served.http.stream("POST", CHAT, json=chat(stream=True)) as response:
        lease = await worker.claim()
        await worker.append(lease, chunk_payload("a"), seq=1)
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                break
    await cancelled(served, lease.job_id)


async def test_leaving_while_the_client_reads_nothing_cancels(served: Served, worker: ScriptedWorker) -> None:
    """The response is stuck in a full socket buffer: the disconnect has to be noticed all the same."""
    payload = chunk_payload("x" * 200_000)
    async with connected(served, stream=True) as sock:
        lease = await worker.claim()
        for seq in range(1, 41):
            await worker.append(lease, payload, seq=seq)
        sock.shutdown(socket.SHUT_RDWR)
    await cancelled(served, lease.job_id)


async def test_a_client_that_stays_keeps_its_job(served: Served, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(served.http.post(CHAT, json=chat(stream=True)))
    await worker.stream(await worker.claim(), "a", "b")
    assert "[DONE]" in (await asking).text
    assert await served.status(worker.leases[0].job_id) == "succeeded"


async def test_fifty_clients_leaving_at_different_moments_leave_nothing_behind(
    served: Served, worker: ScriptedWorker
) -> None:
    async def visit(number: int) -> None:
        async with connected(served, stream=number % 2 == 0):
            await wait_until(lambda: seen(served, number % 10), what="some jobs")

    await asyncio.gather(*(visit(number) for number in range(50)))

    async def none_left() -> bool:
        counts = [
            await served.pipe.command("ZCARD", f"hw:{{small}}:{name}")
            for name in ("ready:0", "leases", "deadlines")
        ]
        return bool(sum(counts) == 0)

    await wait_until(none_left, what="every job to end")


async def seen(served: Served, number: int) -> bool:
    """Whether at least `number` jobs have been accepted."""
    return int(await served.pipe.command("HGET", "hw:{small}:stats", "enqueued:0") or 0) >= number


async def test_stopping_the_server_cancels_what_waits(settings: Settings, worker: ScriptedWorker) -> None:
    async with serve(settings) as served, connected(served):
        lease = await worker.claim()
        await served.stop()
        await cancelled(served, lease.job_id)


async def test_client_that_pipelined_another_request_is_missed_too(
    served: Served, worker: ScriptedWorker
) -> None:
    body = orjson.dumps(chat())
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head + body + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
    lease = await worker.claim()
    writer.close()

    async def cancelled() -> bool:
        return await served.status(lease.job_id) == "cancelled"

    await wait_until(cancelled)


async def test_pipelined_requests_are_answered_in_order(served: Served, worker: ScriptedWorker) -> None:
    body = orjson.dumps(chat())
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head + body + b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    await worker.finish(await worker.claim(), b'{"answer":1}')
    text = await reader.read()
    assert text.index(b'{"answer":1}') < text.index(b'"ok"')
    writer.close()
