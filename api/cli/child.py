"""One child process: started tied to its parent, stopped with grace, restarted ever more slowly.

Called by the supervisor. A child has a session of its own, so that Ctrl-C reaches the supervisor alone.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from pathlib import Path

from api.cli.parts import Part

PR_SET_PDEATHSIG = 1  # prctl(2)
STEADY_S = 30.0  # a run this long clears the record of quick deaths

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Backoff:
    """Seconds until the next start: doubling with each quick death, half of it random."""

    def __init__(self, *, base_s: float = 0.5, cap_s: float = 30.0) -> None:
        self.base_s = base_s
        self.cap_s = cap_s
        self.quick_deaths = 0

    def next_s(self, ran_s: float) -> float:
        if ran_s >= STEADY_S:
            self.quick_deaths = 0
        self.quick_deaths += 1
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(self.quick_deaths - 1, 30))
        return random.uniform(ceiling / 2, ceiling)


def tie_to(parent: int) -> Callable[[], None] | None:
    """Run in the child before it becomes its program: the kernel kills it with its parent, so kill -9 leaves nothing.

    SIGKILL, for a part must be safe to kill at any moment anyway. Linux only; elsewhere `headway down` clears up.
    """
    if _libc is None:
        return None
    prctl = _libc.prctl

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return tie


async def spawn(part: Part, *, env: Mapping[str, str], log: Path) -> Process:
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *part.argv,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            pass_fds=part.inherit,
            start_new_session=True,
            preexec_fn=tie_to(os.getpid()),
        )


async def stop(process: Process, *, grace_s: float) -> None:
    """SIGTERM, then SIGKILL to all of its group."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), grace_s)
    kill_group(process.pid)
    await process.wait()


def kill_group(pid: int) -> None:
    """What is left of the session that `spawn` made, such as an RQ job's process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"stopped with exit code {code}"
