"""One Headway per home; `up.json` whole or not at all; nobody else's process is signalled."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from api.cli.home import Home, Identity, end
from broker.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "h")
    home.prepare()
    return home


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_a_second_headway_in_the_same_home_is_refused_by_name(home: Home) -> None:
    with home.lock(), pytest.raises(ConfigError, match=f"pid {os.getpid()}.*headway down"), home.lock():
        pass
    with home.lock():
        assert home.locked()
    assert not home.locked()


def test_two_homes_do_not_know_of_each_other(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.prepare()
    with home.lock(), other.lock():
        assert home.locked()


def test_up_json_is_replaced_whole(home: Home) -> None:
    home.write_up({"parts": [1]})
    before = home.up_file.stat().st_ino
    home.write_up({"parts": [2]})
    assert home.up_file.stat().st_ino != before
    assert orjson.loads(home.up_file.read_bytes()) == {"parts": [2]}
    assert not list(home.path.glob("*.tmp"))


def test_leftovers_are_the_recorded_processes_that_still_run(home: Home) -> None:
    with sleeper() as left:
        identity = Identity.of(left.pid)
        home.write_up({"parts": [{"name": "w", "pid": identity.pid, "started": identity.started}]})
        assert [process.pid for process in home.leftovers()] == [left.pid]
        end(home.leftovers())
        left.wait()
    assert home.leftovers() == []


def test_a_process_that_got_a_freed_pid_is_never_taken_for_ours(home: Home) -> None:
    with sleeper() as stranger:
        home.write_up(
            {"parts": [{"name": "w", "pid": stranger.pid, "started": Identity.of(stranger.pid).started - 60}]}
        )
        assert home.leftovers() == []
        stranger.kill()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="HEADWAY_HOME="):
        Home(tmp_path / "file" / "h").prepare()


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_damaged_up_json_counts_as_none(home: Home, text: str) -> None:
    home.up_file.write_text(text)
    assert home.read_up() == {}
    assert home.leftovers() == []
