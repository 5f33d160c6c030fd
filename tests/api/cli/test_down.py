"""`headway down` stops what runs in its home and what a crash left there; `up --detach` says why it did not come up."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.down import detach, down
from api.cli.home import Home, Identity
from broker.errors import ConfigError
from tests.conditions import wait_until_sync

HOLDER = """
import signal, sys
from pathlib import Path
from api.cli.home import Home
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with Home(Path(sys.argv[1])).lock():
    signal.pause()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    home = Home(tmp_path)
    home.prepare()
    return home


@pytest.fixture
def holder(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(home.path)]) as process:
        wait_until_sync(lambda: home.locked() and home.holder())
        yield process
        process.kill()


def test_down_stops_the_one_that_holds_the_home(home: Home, holder: subprocess.Popen[bytes]) -> None:
    said: list[str] = []
    home.write_up({"parts": []})
    down(say=said.append)
    assert holder.wait(timeout=10) == 0
    assert "Ctrl-C hands them back" in said[0]
    assert said[1:] == [f"stopped the Headway in {home.path}"]
    assert not home.up_file.exists()


def test_down_ends_what_a_crash_left(home: Home) -> None:
    said: list[str] = []
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as left:
        identity = Identity.of(left.pid)
        home.write_up({"parts": [{"pid": identity.pid, "started": identity.started}]})
        down(say=said.append)
        assert identity.find() is None
        left.wait(timeout=10)
    assert "crashed" in said[0]


def test_down_without_anything_running_says_so(home: Home) -> None:
    said: list[str] = []
    down(say=said.append)
    assert said == [f"no Headway runs in {home.path}; another directory is named by HEADWAY_HOME"]


def test_detach_passes_on_why_it_did_not_come_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_PORT", "0")
    monkeypatch.setenv("HEADWAY_REDIS_URL", "redis://127.0.0.1:9/0")
    with pytest.raises(ConfigError, match=r"(?s)did not come up.*Redis does not answer"):
        detach(say=lambda _: None)
    assert not home.locked()


def test_detach_while_one_runs_is_refused(home: Home, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(ConfigError, match=f"already.*pid {holder.pid}"):
        detach(say=lambda _: None)


def test_detach_that_fails_leaves_no_home_that_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("HEADWAY_PORT", "0")
    monkeypatch.setenv("HEADWAY_REDIS_URL", "redis://127.0.0.1:9/0")
    with pytest.raises(ConfigError, match="did not come up"):
        detach(say=lambda _: None)
    assert not (tmp_path / "h").exists()
