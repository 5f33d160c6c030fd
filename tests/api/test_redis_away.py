"""Redis going away and coming back, on a server of the test's own."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from api import services
from api.cli.redis_server import RedisServer, wait_for
from api.services import open_services
from broker import producer
from broker.errors import RedisAway, RedisUnsuitable
from broker.settings import Settings
from tests.api.harness import CONFIG, ScriptedWorker, chat, chunk_payload, serve, whole_answer
from tests.conditions import wait_until
from tests.conftest import start_redis

CHAT = "/v1/chat/completions"


class OwnRedis:
    """A server that a test may kill and start again at the same port."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self.server, self._process = start_redis(binary, directory)

    @property
    def url(self) -> str:
        return self.server.url

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        self._process = subprocess.Popen(self.server.argv, stdout=subprocess.DEVNULL)
        assert wait_for(self.url, timeout_s=10)


@pytest.fixture
def own_redis(redis_server: RedisServer, tmp_path: Path) -> Iterator[OwnRedis]:
    """`redis_server` skips the test where there is no program."""
    own = OwnRedis(redis_server.binary, tmp_path)
    yield own
    own.kill()


async def test_without_redis_requests_are_503_and_the_process_is_alive(
    own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "SUBMIT_PATIENCE_S", 0.1)
    monkeypatch.setattr(services, "FAREWELL_S", 0.1)
    async with serve(Settings(redis_url=own_redis.url)) as served:
        own_redis.kill()
        for path in (CHAT, "/v1/jobs"):
            response = await served.http.post(path, json=chat())
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "queue_unavailable"
            assert int(response.headers["retry-after"]) >= 1
        ready = await served.http.get("/readyz")
        assert ready.status_code == 503
        assert "Redis" in ready.json()["reasons"][0]
        assert (await served.http.get("/healthz")).status_code == 200


async def test_a_request_that_waits_gets_its_answer_after_redis_has_come_back(own_redis: OwnRedis) -> None:
    worker = await ScriptedWorker.join(own_redis.url, "small")
    async with serve(Settings(redis_url=own_redis.url)) as served:
        asking = asyncio.create_task(served.http.post(CHAT, json=chat()))
        lease = await worker.claim()
        await served.pipe.command("CONFIG", "SET", "appendfsync", "always")
        await served.pipe.command("WAIT", 0, 1)
        own_redis.kill()
        own_redis.start()

        async def finished() -> bool:
            try:
                await worker.finish(lease, whole_answer("after all"))
            except RedisAway:
                return False
            return True

        await wait_until(finished)
        assert (await asking).content == whole_answer("after all")
    await worker.close()


async def test_the_api_does_not_start_on_a_redis_that_evicts(own_redis: OwnRedis) -> None:
    async with serve(Settings(redis_url=own_redis.url)) as served:
        await served.pipe.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(RedisUnsuitable, match="noeviction"):
        async with open_services(Settings(redis_url=own_redis.url), CONFIG):
            pass


async def test_the_api_does_not_start_without_redis(own_redis: OwnRedis) -> None:
    own_redis.kill()
    with pytest.raises(RedisAway, match="HEADWAY_REDIS_URL"):
        async with open_services(Settings(redis_url=own_redis.url), CONFIG):
            pass


async def test_a_stream_goes_on_after_redis_has_come_back(own_redis: OwnRedis) -> None:
    worker = await ScriptedWorker.join(own_redis.url, "small")
    async with serve(Settings(redis_url=own_redis.url)) as served:
        await served.pipe.command("CONFIG", "SET", "appendfsync", "always")
        asking = asyncio.create_task(served.http.post(CHAT, json=chat(stream=True)))
        lease = await worker.claim()
        await worker.append(lease, chunk_payload("before "), seq=1)
        own_redis.kill()
        own_redis.start()

        async def written() -> bool:
            with contextlib.suppress(RedisAway):
                await worker.append(lease, chunk_payload("after"), seq=2)
                await worker.finish(lease)
                return True
            return False

        await wait_until(written)
        events = (await asking).text
        assert events.index("before ") < events.index("after") < events.index("[DONE]")
        assert "error" not in events
    await worker.close()


async def test_a_caller_that_leaves_while_redis_is_away_takes_its_job_along(own_redis: OwnRedis) -> None:
    worker = await ScriptedWorker.join(own_redis.url, "small")
    async with serve(Settings(redis_url=own_redis.url)) as served:
        await served.pipe.command("CONFIG", "SET", "appendfsync", "always")
        asking = asyncio.create_task(served.http.post(CHAT, json=chat()))
        lease = await worker.claim()
        own_redis.kill()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        own_redis.start()

        async def cancelled() -> bool:
            with contextlib.suppress(RedisAway):
                return await served.status(lease.job_id) == "cancelled"
            return False

        await wait_until(cancelled)
    await worker.close()
