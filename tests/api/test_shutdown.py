"""SIGTERM: nothing new is taken, what is under way may end, then it is told to go on elsewhere."""

import asyncio
import resource
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from api import connection
from api.cli.redis_server import free_port
from broker.settings import Settings
from tests.api import harness
from tests.api.harness import ScriptedWorker, Served, chat, chunk_payload, serve, whole_answer
from tests.api.wire import dial, post
from tests.conditions import wait_until

CHAT = "/v1/chat/completions"
JOBS = "/v1/jobs"
FILES = 300  # that a process may have open


@pytest.fixture
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DRAIN_S", 0.1)


async def refuses_connections(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) != 0


@asynccontextmanager
async def stopping(served: Served) -> AsyncIterator[None]:
    """Inside, the listener is closed."""
    task = asyncio.ensure_future(served.stop())
    await wait_until(lambda: refuses_connections(served.url), what="a listener that is closed")
    yield
    await task


async def test_a_request_that_comes_while_it_stops_is_503_and_may_be_repeated(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FAREWELL_S", 5.0)
    async with serve(settings) as served, dial(served) as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await wire.answer()).headers.get("connection") is None
        async with stopping(served):
            await wire.send(post(JOBS))
            answer = await wire.answer()
            assert (answer.status, answer.error["code"]) == (503, "shutting_down")
            assert answer.headers["connection"] == "close"
            assert answer.headers["retry-after"] == "1"
            wire.writer.close()
        assert await served.pipe.command("KEYS", "hw:*job:*") == []


async def test_idle_connections_are_closed(settings: Settings) -> None:
    async with serve(settings) as served, dial(served) as wire, dial(served) as unused:
        await wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        await wire.answer()
        async with stopping(served):
            assert await wire.ends() == b""
            assert await unused.ends() == b""


async def test_an_answer_under_way_is_whole_and_the_connections_last(
    settings: Settings, worker: ScriptedWorker
) -> None:
    async with serve(settings) as served:
        asking = asyncio.create_task(served.http.post(CHAT, json=chat()))
        lease = await worker.claim()
        async with stopping(served):
            await worker.finish(lease, whole_answer("ok"))
            answer = await asking
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert answer.content == whole_answer("ok")


async def test_a_stream_may_end_within_the_drain_time(settings: Settings, worker: ScriptedWorker) -> None:
    async with serve(settings) as served:
        asking = asyncio.create_task(served.http.post(CHAT, json=chat(stream=True)))
        lease = await worker.claim()
        await worker.append(lease, chunk_payload("a"), seq=1)
        async with stopping(served):
            await worker.append(lease, chunk_payload("b"), seq=2)
            await worker.finish(lease)
            text = (await asking).text
        assert text.count('"delta"') == 2
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.usefixtures("short_drain")
async def test_a_stream_beyond_the_drain_time_ends_with_an_error_and_its_job(
    settings: Settings, worker: ScriptedWorker
) -> None:
    async with serve(settings) as served:
        asking = asyncio.create_task(served.http.post(CHAT, json=chat(stream=True)))
        lease = await worker.claim()
        await worker.append(lease, chunk_payload("a"), seq=1)
        async with stopping(served):
            events = (await asking).text.strip().split("\n\n")
        error = orjson.loads(events[-2].removeprefix("data: "))["error"]
        assert (error["code"], events[-1]) == ("shutting_down", "data: [DONE]")
        assert await served.status(lease.job_id) == "cancelled"


@pytest.mark.usefixtures("short_drain")
async def test_who_waits_without_a_stream_beyond_the_drain_time_gets_503(
    settings: Settings, worker: ScriptedWorker
) -> None:
    async with serve(settings) as served:
        asking = asyncio.create_task(served.http.post(CHAT, json=chat()))
        lease = await worker.claim()
        job_id = (await served.http.post(JOBS, json=chat())).json()["id"]
        polling = asyncio.create_task(served.http.get(f"{JOBS}/{job_id}", params={"wait": 30}))
        await asyncio.sleep(0)
        async with stopping(served):
            for waiting in (asking, polling):
                assert (await waiting).status_code == 503
                assert (await waiting).headers["retry-after"] == "1"
        assert await served.status(lease.job_id) == "cancelled", "its connection was all it had"
        assert await served.status(job_id) == "queued"
        await served.producer.cancel(job_id)


@pytest.mark.usefixtures("short_drain")
async def test_a_watcher_goes_on_at_another_process_after_its_last_event(
    settings: Settings, worker: ScriptedWorker
) -> None:
    async with serve(settings) as served:
        job_id = (await served.http.post(JOBS, json=chat(**{"class": "P1"}))).json()["id"]
        watching = asyncio.create_task(served.http.get(f"{JOBS}/{job_id}/events"))
        lease = await worker.claim()
        await worker.append(lease, chunk_payload("a"), seq=1)
        async with stopping(served):
            first = (await watching).text
    assert first.endswith(": interrupted, please reconnect\n\n"), "and the body has its end"
    assert f"id: {lease.token}-1\n" in first
    async with serve(settings) as served:
        await worker.append(lease, chunk_payload("b"), seq=2)
        await worker.finish(lease, whole_answer("ab"))
        events = await served.http.get(
            f"{JOBS}/{job_id}/events", headers={"last-event-id": f"{lease.token}-1"}
        )
    assert events.text.count("event: chunk") == 1
    assert '"content":"b"' in events.text
    assert "event: done" in events.text


@asynccontextmanager
async def process(redis_url: str, folder: Path) -> AsyncIterator[tuple[Process, str]]:
    """`headway api` with few files to open, and its address."""
    config, port = folder / "headway.yaml", free_port()
    config.write_text("models: [{pool: small}]\n")
    env = {
        "HEADWAY_REDIS_URL": redis_url,
        "HEADWAY_CONFIG": str(config),
        "HEADWAY_HOME": str(folder),
        "HEADWAY_PORT": str(port),
    }

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES // 2, FILES))

    argv = (sys.executable, "-m", "api.cli.serve")
    with (folder / "log").open("wb") as log:
        started = await asyncio.create_subprocess_exec(
            *argv, env=env, preexec_fn=few_files, stderr=log, stdout=DEVNULL
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await wait_until(lambda: not_refused(url), timeout_s=30, what="an API that listens")
        yield started, url
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def not_refused(url: str) -> bool:
    return not await refuses_connections(url)


async def test_process_keeps_files_for_itself_and_stops_without_losing_an_accepted_job(
    redis_url: str, served: Served, tmp_path: Path
) -> None:
    """`served` is another process on the same Redis."""
    async with process(redis_url, tmp_path) as (started, url), httpx.AsyncClient(base_url=url) as http:
        host, port = url.removeprefix("http://").split(":")
        crowd = [socket.create_connection((host, int(port))) for _ in range(FILES)]
        assert b"503" in crowd[-1].recv(1000)
        for sock in crowd:
            sock.close()

        async def free() -> bool:
            return (await http.get("/healthz")).status_code == 200

        await wait_until(free, what="the connections to be gone")
        accepted: list[str] = []
        asking = [asyncio.create_task(submit(http, accepted)) for _ in range(8)]
        await wait_until(lambda: len(accepted) > 20, what="some jobs")
        started.send_signal(signal.SIGTERM)
        await asyncio.gather(*asking)
        assert await started.wait() == -signal.SIGTERM
    assert b"Traceback" not in (tmp_path / "log").read_bytes()
    for job_id in accepted:
        assert await served.status(job_id) == "queued"
        await served.producer.cancel(job_id)


async def submit(http: httpx.AsyncClient, accepted: list[str]) -> None:
    """Until the process stops."""
    while True:
        try:
            answer = await http.post(JOBS, json=chat())
        except httpx.TransportError:
            return
        if answer.status_code == 202:
            accepted.append(answer.json()["id"])
        else:
            assert answer.status_code == 503, answer.text
