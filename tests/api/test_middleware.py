"""The gate: keys, sizes, and the number of requests at a time."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from broker.settings import Settings
from tests.api.harness import ScriptedWorker, chat, serve, whole_answer
from tests.conditions import wait_until

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("Basic one", 401),
        ("Bearer one", 202),
        ("bearer two", 202),
    ],
)
async def test_with_keys_set_only_a_known_key_gets_in(
    redis_url: str, *, authorization: str | None, status: int
) -> None:
    settings = Settings(redis_url=redis_url, api_keys=(SecretStr("one"), SecretStr("two")))
    headers = {} if authorization is None else {"Authorization": authorization}
    async with serve(settings) as served:
        response = await served.http.post("/v1/jobs", json=chat(), headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.json()["error"]["code"] in ("missing_api_key", "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
        else:
            await served.http.delete(f"/v1/jobs/{response.json()['id']}", headers=headers)


async def test_health_and_the_page_need_no_key_and_figures_do(redis_url: str) -> None:
    async with serve(Settings(redis_url=redis_url, api_keys=(SecretStr("one"),))) as served:
        for path, status in {
            "/healthz": 200,
            "/": 200,
            "/readyz": 503,
            "/metrics": 401,
            "/v1/fleet": 401,
        }.items():
            assert (await served.http.get(path)).status_code == status


async def test_a_body_of_50_mb_is_413_by_its_length(redis_url: str) -> None:
    async with serve(Settings(redis_url=redis_url)) as served:
        response = await served.http.post(CHAT, content=b"x" * 50_000_000)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert (await served.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/jobs"])
async def test_a_body_of_unknown_length_is_413_once_it_is_too_large(redis_url: str, *, path: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" " * 1000

    async with serve(Settings(redis_url=redis_url, max_body_bytes=10_000)) as served:
        response = await served.http.post(path, content=pieces())
        assert response.status_code == 413


async def test_a_chunked_body_within_the_limit_is_read_whole(redis_url: str, worker: ScriptedWorker) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model":"small","messages":'
        yield b'[{"role":"user","content":"hi"}]}'

    async with serve(Settings(redis_url=redis_url)) as served:
        asking = asyncio.create_task(served.http.post(CHAT, content=pieces()))
        await worker.finish(await worker.claim(), whole_answer("ok"))
        assert (await asking).status_code == 200


async def test_more_requests_at_a_time_than_allowed_are_503(redis_url: str, worker: ScriptedWorker) -> None:
    async with serve(Settings(redis_url=redis_url, max_connections=1)) as served:
        asking = asyncio.create_task(served.http.post(CHAT, json=chat()))
        lease = await worker.claim()
        response = await served.http.get("/v1/models")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "overloaded"
        assert (await served.http.get("/healthz")).status_code == 200
        await worker.finish(lease, whole_answer("ok"))
        assert (await asking).status_code == 200

        async def is_open() -> bool:
            return (await served.http.get("/v1/models")).status_code == 200

        await wait_until(is_open)
