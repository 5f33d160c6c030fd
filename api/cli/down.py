"""`headway up --detach` and `headway down`: the same `headway up`, in the background."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from api.cli.home import Home, end, tail
from api.cli.parts import python
from broker.errors import ConfigError
from broker.settings import load_settings

STEP_S = 0.05
LOG = "up"
SLOWEST_STOP_S = 60.0  # beyond HEADWAY_DRAIN_S


def detach(*, say: Callable[[str], None]) -> None:
    """Returns when everything is ready. Raises ConfigError with what `headway up` said if it stopped before."""
    home = Home(load_settings().home)
    with home.in_use():
        _detach(home, say=say)


def _detach(home: Home, *, say: Callable[[str], None]) -> None:
    with home.lock():
        log = home.fresh_log(LOG)
        home.up_file.unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            python("api.cli.up"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while not home.up_file.exists():
            if process.poll() is not None:
                raise ConfigError(f"did not come up:\n{tail(log, lines=30)}")
            time.sleep(STEP_S)
    except KeyboardInterrupt:
        process.terminate()
        raise
    say(tail(log, lines=100))


def down(*, say: Callable[[str], None]) -> None:
    """Stops what runs in the home directory, and what a crash left there. Raises ConfigError if it will not stop."""
    settings = load_settings()
    home = Home(settings.home)
    if home.locked():
        say(
            f"stopping the Headway in {home.path}: running jobs get up to {settings.drain_s:g} s to finish; "
            "Ctrl-C hands them back to the queue at once"
        )
        _stop_supervisor(home, patience_s=settings.drain_s + SLOWEST_STOP_S)
        say(f"stopped the Headway in {home.path}")
    elif leftovers := home.leftovers():
        say(f"the Headway in {home.path} crashed; ending {len(leftovers)} processes that it left")
        end(leftovers)
    else:
        say(f"no Headway runs in {home.path}; another directory is named by HEADWAY_HOME")
    home.up_file.unlink(missing_ok=True)


def _stop_supervisor(home: Home, *, patience_s: float) -> None:
    holder = home.holder()
    process = holder.find() if holder else None
    if process is None:
        raise ConfigError(f"{home.lock_file} is held by an unknown process")
    try:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
            try:
                process.wait(patience_s)
            except KeyboardInterrupt:
                process.terminate()
                process.wait(patience_s)
    except psutil.TimeoutExpired:
        raise ConfigError(
            f"pid {process.pid} did not stop within {patience_s:g} s; `kill -9 {process.pid}` is safe: "
            "its parts end with it, and no accepted job is lost"
        ) from None
