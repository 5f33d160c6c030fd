"""The home directory: who runs in it (`up.lock`), what runs (`up.json`), logs, and what a crash left running.

Written by `headway up`, read by `headway down`, the client commands and `broker/settings.py`. A process is named by
pid and start time together, so that a stranger who got a freed pid is never signalled.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from broker.errors import BrokerError, ConfigError

SAME_START_S = 2.0  # start times are read with the resolution of the boot time


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that is this one and no later bearer of its pid. `started`: seconds since the epoch."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> "Identity":
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:  # gone already
            return cls(pid, 0.0)

    @classmethod
    def load(cls, document: Any) -> "Identity | None":
        try:
            return cls(int(document["pid"]), float(document["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    def find(self) -> psutil.Process | None:
        """The process, if it still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < SAME_START_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home directory."""

    path: Path

    @property
    def up_file(self) -> Path:
        return self.path / "up.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "up.lock"

    @property
    def redis(self) -> Path:
        return self.path / "redis"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def prepare(self) -> None:
        """Raises ConfigError if the directory cannot be used."""
        try:
            for folder in (self.path, self.redis, self.path / "logs", self.path / "files"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"HEADWAY_HOME={self.path} cannot be used: {error.strerror} ({error.filename})"
            ) from None

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Makes the directory; what it made it takes away again if the block fails before any data is in there."""
        fresh = not self.path.exists()
        self.prepare()
        try:
            yield
        except BrokerError:
            if fresh and not any(self.redis.iterdir()):
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def fresh_log(self, name: str) -> Path:
        """An empty log; the last run's is kept as NAME.log.1."""
        log = self.log(name)
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        log.touch()
        return log

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Held while `headway up` runs; the kernel lets go of it when the process dies. Raises ConfigError if taken."""
        with self.lock_file.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = self.holder()
                pid = f" (pid {holder.pid})" if holder else ""
                raise ConfigError(
                    f"a Headway runs in {self.path} already{pid}: stop it with `headway down`, "
                    "or give this one its own HEADWAY_HOME and HEADWAY_PORT"
                ) from None
            file.truncate(0)
            me = Identity.of(os.getpid())
            file.write(orjson.dumps({"pid": me.pid, "started": me.started}))
            file.flush()
            yield

    def locked(self) -> bool:
        with contextlib.suppress(FileNotFoundError), self.lock_file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def holder(self) -> Identity | None:
        """Who took the lock last."""
        return Identity.load(read_json(self.lock_file))

    def write_up(self, document: dict[str, Any]) -> None:
        """Whole or not at all: a reader never sees half of it."""
        handle, name = tempfile.mkstemp(dir=self.path, prefix="up.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        Path(name).replace(self.up_file)

    def read_up(self) -> dict[str, Any]:
        """Empty if nothing runs."""
        document = read_json(self.up_file)
        return document if isinstance(document, dict) else {}

    def leftovers(self) -> list[psutil.Process]:
        """Parts that outlived their supervisor (which Linux prevents). Ask only while the lock is free or ours."""
        named = (Identity.load(part) for part in self.read_up().get("parts", []))
        return [process for identity in named if identity and (process := identity.find())]


def read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def end(processes: list[psutil.Process], *, grace_s: float = 10.0) -> None:
    """SIGTERM, then SIGKILL."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)


def tail(path: Path, *, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text("utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
