"""A part that dies is started again; one that cannot start is given up with its log; all stop in order."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.cli.home import Home
from api.cli.parts import Kind, Part
from api.cli.probes import alive
from api.cli.supervisor import PartFailed, Supervisor
from broker.steering import DISMISSED
from tests.conditions import wait_until

SLEEPS = "import time; time.sleep(600)"
FAILS = "raise ModuleNotFoundError('No module named celery')"


def part(name: str, *, kind: Kind = "worker", code: str = SLEEPS) -> Part:
    return Part(name=name, kind=kind, argv=(sys.executable, "-c", code), grace_s=5.0)


class Watched:
    """A supervisor, and what it said."""

    def __init__(self, home: Home) -> None:
        self.said: list[str] = []
        self.changes = 0
        self.supervisor = Supervisor(home, report=self.said.append, changed=self.note)
        self.supervisor.env = os.environ

    def note(self) -> None:
        self.changes += 1

    def pid(self, name: str) -> int:
        return self.supervisor.running[name].identity.pid


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    home = Home(tmp_path)
    home.prepare()
    watched = Watched(home)
    yield watched
    await watched.supervisor.stop()


async def test_a_part_that_dies_is_started_again_with_a_new_pid(watched: Watched) -> None:
    await_part = part("w")
    watched.supervisor.start(await_part)
    await watched.supervisor.until(await_part, alive, timeout_s=10)
    watched.supervisor.settle()
    first, changes = watched.pid("w"), watched.changes
    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: watched.pid("w") != first)
    assert watched.changes == changes + 1
    assert any("w was killed by SIGKILL; starting it again" in line for line in watched.said)


@pytest.mark.parametrize("kind", ["worker", "celery"])
async def test_a_worker_that_an_operator_has_drained_is_not_started_again(
    watched: Watched, kind: Kind
) -> None:
    """By its exit code; another part that leaves with the same one is started again."""
    leaves = part("w", kind=kind, code=f"import sys; sys.stdin.read(); sys.exit({DISMISSED})")
    watched.supervisor.settle()
    watched.supervisor.start(leaves)
    await wait_until(lambda: watched.said)
    if kind == "worker":
        assert "is not started again" in watched.said[0]
        assert watched.supervisor.running == {}
        assert watched.changes == 2
    else:
        assert "starting it again" in watched.said[0]


async def test_a_part_that_never_starts_is_given_up_with_the_end_of_its_log(watched: Watched) -> None:
    broken = part("celery", kind="celery", code=FAILS)
    watched.supervisor.start(broken)

    async def never(_: int) -> bool:
        return False

    with pytest.raises(PartFailed, match=r"(?s)exit code 1, 3 times.*No module named celery"):
        await watched.supervisor.until(broken, never, timeout_s=30)


async def test_a_program_that_does_not_exist_is_given_up(watched: Watched) -> None:
    absent = Part(name="redis", kind="redis", argv=("/nonexistent/redis-server",))
    watched.supervisor.start(absent)
    with pytest.raises(PartFailed, match="cannot be started"):
        await watched.supervisor.until(absent, alive, timeout_s=30)


async def test_a_part_that_is_not_ready_in_time_is_named(watched: Watched) -> None:
    slow = part("w")
    watched.supervisor.start(slow)

    async def never(_: int) -> bool:
        return False

    with pytest.raises(PartFailed, match="w was not ready within"):
        await watched.supervisor.until(slow, never, timeout_s=0.2)


async def test_workers_stop_first_and_redis_last(watched: Watched) -> None:
    for name, kind in (("r", "redis"), ("a", "api"), ("w", "worker"), ("c", "celery")):
        started = part(name, kind=kind)  # type: ignore[arg-type]
        watched.supervisor.start(started)
        await watched.supervisor.until(started, alive, timeout_s=10)
    watched.supervisor.settle()
    await watched.supervisor.stop()
    assert watched.said == ["stopping w", "stopping a, c", "stopping r"]
    assert all(running.process.returncode is not None for running in watched.supervisor.running.values())


async def test_the_log_of_the_run_before_is_kept(watched: Watched, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.log("w").write_text("before")
    watched.supervisor.start(part("w"))
    assert home.log("w").with_suffix(".log.1").read_text() == "before"
    assert home.log("w").read_text() == ""


async def test_an_optional_part_that_fails_is_told_once_and_tried_on(watched: Watched) -> None:
    broken = replace(part("flower", kind="flower", code=FAILS), optional=True)
    other = part("w")
    watched.supervisor.start(broken)
    watched.supervisor.start(other)
    with pytest.raises(PartFailed, match="exit code 1"):
        await watched.supervisor.until(broken, alive_at_last, timeout_s=30)
    first = watched.pid("flower")
    await wait_until(lambda: watched.pid("flower") != first)
    await watched.supervisor.until(other, alive, timeout_s=10)
    assert len([line for line in watched.said if line.startswith("flower")]) == 1
    assert "the rest does without it" in watched.said[0]


async def alive_at_last(_: int) -> bool:
    return False


STUBBORN = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1) or len(asked) > 1 and sys.exit(0))
print("up", flush=True)
time.sleep(600)
"""


async def test_hurry_asks_the_workers_a_second_time(watched: Watched, tmp_path: Path) -> None:
    draining = replace(part("w", code=STUBBORN), grace_s=60.0)
    watched.supervisor.start(draining)

    async def caught(_: int) -> bool:
        return "up" in Home(tmp_path).log("w").read_text()

    await watched.supervisor.until(draining, caught, timeout_s=10)
    stopping = asyncio.create_task(watched.supervisor.stop())
    await wait_until(lambda: "stopping w" in watched.said)
    while not stopping.done():
        watched.supervisor.hurry()
        await asyncio.wait({stopping}, timeout=0.05)
    assert watched.supervisor.running["w"].process.returncode == 0
