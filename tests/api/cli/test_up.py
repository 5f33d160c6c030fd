"""`headway up` as a whole, with a real redis-server and stand-ins for the API and Celery (tests/e2e has the real ones)."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
import redis

from api.cli import up
from api.cli.home import Home
from api.cli.listener import listen
from api.cli.parts import Part
from broker.config import Config
from broker.errors import ConfigError, RedisUnsuitable
from broker.settings import Settings, load_settings
from tests.conditions import wait_until

HTTP = """
import os, socket, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["HEADWAY_REDIS_URL"].encode())
server = HTTPServer(("127.0.0.1", 0), Ready, bind_and_activate=False)
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.serve_forever()
"""
SLEEPS = "import time; time.sleep(600)"


def stand_in_api(url: str, config: Config, *, listener: int) -> Part:
    argv = (sys.executable, "-c", HTTP, str(listener))
    return Part(name="api", kind="api", argv=argv, url=url, inherit=(listener,), ready_path="/")


def stand_in_others(settings: Settings, config: Config, *, flower_port: int) -> list[Part]:
    return [Part(name="celery", kind="celery", argv=(sys.executable, "-c", SLEEPS))]


async def body(url: str) -> str:
    async with httpx.AsyncClient(timeout=30) as client:
        return (await client.get(url)).text


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "api_part", stand_in_api)
    monkeypatch.setattr(up, "engine_parts", stand_in_others)


@asynccontextmanager
async def running(path: Path, said: list[str], **overrides: Any) -> AsyncIterator[dict[str, Any]]:
    """Yields `up.json`."""
    settings = load_settings(home=path, port=0, **overrides)
    home = Home(settings.home)
    home.prepare()
    interrupts = up.Interrupts()
    task = asyncio.create_task(up.Up(settings, Config(), say=said.append).run(interrupts))
    try:
        await wait_until(lambda: home.up_file.exists() or task.done(), timeout_s=30)
        yield home.read_up()
    finally:
        interrupts.stop.set()
        await asyncio.wait_for(task, 30)


async def test_up_json_names_every_part_once_all_are_ready(tmp_path: Path) -> None:
    said: list[str] = []
    async with running(tmp_path, said) as document:
        assert [part["kind"] for part in document["parts"]] == ["redis", "celery", "api"]
        assert all(psutil.pid_exists(part["pid"]) for part in document["parts"])
        assert document["api"]["pid"] == document["parts"][2]["pid"]
        assert await body(document["api"]["url"]) == document["parts"][0]["url"]
        assert said[-1] == "ready"
    assert not (tmp_path / "up.json").exists()
    assert not any(psutil.pid_exists(part["pid"]) for part in document["parts"])


async def test_two_run_side_by_side(tmp_path: Path) -> None:
    async with running(tmp_path / "a", []) as first, running(tmp_path / "b", []) as second:
        urls = [part["url"] for up in (first, second) for part in up["parts"] if part["url"]]
        assert len(urls) == len(set(urls)) == 4


async def test_redis_killed_comes_back_at_the_same_place_with_its_data(tmp_path: Path) -> None:
    async with running(tmp_path, []) as document:
        pid, url = document["parts"][0]["pid"], document["parts"][0]["url"]
        with redis.Redis.from_url(url) as client:
            client.set("k", "v")
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: Home(tmp_path).read_up()["parts"][0]["pid"] != pid)
            await wait_until(lambda: value(client) == b"v")


def value(client: "redis.Redis") -> Any:
    try:
        return client.get("k")
    except redis.RedisError:
        return None


async def test_callers_wait_while_a_killed_api_is_started_again(tmp_path: Path) -> None:
    async with running(tmp_path, []) as document:
        os.kill(document["api"]["pid"], signal.SIGKILL)
        assert await body(document["api"]["url"]) == document["parts"][0]["url"]
        await wait_until(lambda: Home(tmp_path).read_up()["api"]["pid"] != document["api"]["pid"])


@pytest.fixture
def evicting_redis_url(redis_url: str) -> Iterator[str]:
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        yield redis_url
        client.config_set("maxmemory-policy", "noeviction")


async def test_a_foreign_redis_that_evicts_is_refused_and_nothing_is_left_running(
    tmp_path: Path, evicting_redis_url: str
) -> None:
    with pytest.raises(RedisUnsuitable, match="noeviction"):
        async with running(tmp_path, [], redis_url=evicting_redis_url):
            pass
    assert not (tmp_path / "up.json").exists()


async def test_an_open_address_without_keys_is_refused_before_the_api_is_started(
    tmp_path: Path, redis_url: str
) -> None:
    with pytest.raises(ConfigError, match="headway keys create"):
        async with running(tmp_path, [], redis_url=redis_url, host="0.0.0.0"):
            pass
    assert not (tmp_path / "up.json").exists()
    assert not list((tmp_path / "logs").glob("api*"))


async def test_a_foreign_redis_is_used_and_left_running(tmp_path: Path, redis_url: str) -> None:
    async with running(tmp_path, [], redis_url=redis_url) as document:
        assert [part["kind"] for part in document["parts"]] == ["celery", "api"]
        assert await body(document["api"]["url"]) == redis_url
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


async def test_a_signal_while_still_starting_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ready(url: str, config: Config, *, listener: int) -> Part:
        argv = (sys.executable, "-c", SLEEPS)
        return Part(name="api", kind="api", argv=argv, url="http://127.0.0.1:9", ready_path="/")

    monkeypatch.setattr(up, "api_part", never_ready)
    home = Home(tmp_path)
    home.prepare()
    run = up.Up(load_settings(home=tmp_path, port=0), Config(), say=lambda _: None)
    interrupts = up.Interrupts()
    interrupts.listen()
    task = asyncio.create_task(run.run(interrupts))
    await wait_until(lambda: "api" in run.supervisor.running)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(task, 30)
    assert all(part.process.returncode is not None for part in run.supervisor.running.values())
    assert orjson.dumps(home.read_up()) == b"{}"


async def test_a_taken_flower_port_refuses_to_start_and_names_its_setting(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}.*HEADWAY_FLOWER_PORT"):
            async with running(tmp_path, [], flower_port=port):
                pass


async def test_a_flower_that_fails_does_not_keep_the_rest_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_broken_flower(settings: Settings, config: Config, *, flower_port: int) -> list[Part]:
        flower = Part(name="flower", kind="flower", argv=("false",), optional=True, ready_path="/")
        return [flower, *stand_in_others(settings, config, flower_port=flower_port)]

    monkeypatch.setattr(up, "engine_parts", with_broken_flower)
    said: list[str] = []
    async with running(tmp_path, said) as document:
        assert await body(document["api"]["url"])
        assert said[-1] == "ready"
        assert any(line.startswith("flower is not ready") for line in said)


async def test_stopping_says_how_long_running_jobs_get_and_how_to_hurry(tmp_path: Path) -> None:
    said: list[str] = []
    async with running(tmp_path, said, drain_s=7):
        assert any(line.startswith("  redis-server ") for line in said)
    assert any("up to 7 s" in line and "second Ctrl-C" in line for line in said)


def test_a_start_that_fails_leaves_no_home_that_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "h"))
    with listen("127.0.0.1", 0) as sock:
        monkeypatch.setenv("HEADWAY_PORT", str(sock.getsockname()[1]))
        with pytest.raises(ConfigError, match="HEADWAY_PORT"):
            up.run_up(say=lambda _: None)
        assert not (tmp_path / "h").exists()
        (tmp_path / "h").mkdir()
        with pytest.raises(ConfigError, match="HEADWAY_PORT"):
            up.run_up(say=lambda _: None)
        assert (tmp_path / "h").exists()


def test_files_that_nothing_here_can_open_refuse_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("HEADWAY_FILES_URL", "nonsense://bucket")
    with pytest.raises(ConfigError, match=r"HEADWAY_FILES_URL.*nonsense://"):
        up.run_up(say=lambda _: None)
    assert not (tmp_path / "h").exists()
