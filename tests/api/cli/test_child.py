"""Children are tied to their parent, stopped with grace, and restarted ever more slowly."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from api.cli.child import STEADY_S, Backoff, describe_exit, spawn, stop
from api.cli.parts import Part
from tests.conditions import wait_until

IGNORES_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
)
FORKS = "import os, sys, time; print(os.fork(), flush=True); time.sleep(600)"
SPAWNER = """
import asyncio, os, sys
from pathlib import Path
from api.cli.child import spawn
from api.cli.parts import Part
async def main():
    part = Part("sleeper", "worker", (sys.executable, "-c", "import time; time.sleep(600)"))
    process = await spawn(part, env=os.environ, log=Path(sys.argv[1]))
    print(process.pid, flush=True)
    await process.wait()
asyncio.run(main())
"""


def part(code: str) -> Part:
    return Part(name="p", kind="worker", argv=(sys.executable, "-u", "-c", code))


def test_backoff_doubles_to_its_cap_and_keeps_half_of_it_random() -> None:
    backoff = Backoff(base_s=0.5, cap_s=4.0)
    waits = [backoff.next_s(0.1) for _ in range(6)]
    for wait_s, ceiling in zip(waits, [0.5, 1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert ceiling / 2 <= wait_s <= ceiling


def test_a_steady_run_clears_the_record_of_quick_deaths() -> None:
    backoff = Backoff(base_s=0.5, cap_s=30.0)
    for _ in range(5):
        backoff.next_s(0.1)
    assert backoff.next_s(STEADY_S) <= 0.5


async def test_stop_kills_what_ignores_sigterm_after_its_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = await spawn(part(IGNORES_TERM), env=os.environ, log=log)
    await wait_until(lambda: "up" in log.read_text())
    await stop(process, grace_s=0.05)
    assert process.returncode == -signal.SIGKILL


async def test_stop_leaves_no_grandchild_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = await spawn(part(FORKS), env=os.environ, log=log)
    pids = await wait_until(lambda: [int(line) for line in log.read_text().split() if line != "0"])
    await stop(process, grace_s=5)
    await wait_until(lambda: not psutil.pid_exists(pids[0]) or psutil.Process(pids[0]).status() == "zombie")


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
async def test_kill_9_of_the_parent_ends_its_children(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SPAWNER, str(tmp_path / "log"), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert psutil.pid_exists(child)
    parent.kill()
    await parent.wait()
    await wait_until(lambda: gone(child))


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_exits_are_named() -> None:
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(3) == "stopped with exit code 3"
