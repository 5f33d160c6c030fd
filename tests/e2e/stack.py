"""A whole Headway as `headway up` starts it, in a folder of its own on free ports, and what tests ask of it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from broker.keys import is_permanent
from tests.conditions import wait_until_sync

HEADWAY = Path(sys.executable).with_name("headway")


@dataclass(frozen=True)
class Stack:
    """`home` is its HEADWAY_HOME."""

    home: Path
    environment: dict[str, str]

    @classmethod
    def start(cls, home: Path, **settings: str) -> "Stack":
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
        environment = inherited | {"HEADWAY_HOME": str(home), "HEADWAY_PORT": "0"} | settings
        stack = cls(home, environment)
        done = stack.run("up", "--detach")
        assert done.returncode == 0, f"headway up failed: {done.stdout}{done.stderr}{stack.logs()}"
        return stack

    def run(self, *words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """The `headway` command against this stack."""
        return subprocess.run(
            [HEADWAY, *words],
            env=self.environment,
            cwd=self.home,
            text=True,
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )

    def stop(self) -> None:
        """Everything ends, and nothing is left over."""
        pids = [part["pid"] for part in self.parts]
        assert self.run("down").returncode == 0
        assert not [pid for pid in pids if psutil.pid_exists(pid)]

    @property
    def up(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.home / "up.json").read_text())
        return document

    @property
    def url(self) -> str:
        return str(self.up["api"]["url"])

    @property
    def parts(self) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = self.up["parts"]
        return parts

    def pid(self, kind: str, *, name: str = "") -> int:
        return next(int(p["pid"]) for p in self.parts if p["kind"] == kind and name in p["name"])

    def kill(self, kind: str, *, name: str = "") -> None:
        """kill -9 of one part; returns when the supervisor has started it again."""
        pid = self.pid(kind, name=name)
        os.kill(pid, signal.SIGKILL)
        wait_until_sync(
            lambda: self.pid(kind, name=name) != pid, timeout_s=30, what=f"{kind} is started again"
        )

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def redis(self) -> Any:
        url = next(part["url"] for part in self.parts if part["kind"] == "redis")
        return redis.Redis.from_url(url, decode_responses=True)

    def busy_slots(self) -> int:
        """Slots that are busy in the engines themselves and leases in Redis, by the fleet's own word."""
        with self.http() as client:
            pools = client.get("/v1/fleet").json()["pools"]
        return sum(pool["running"] for pool in pools)

    def leaked_keys(self) -> list[str]:
        """Keys that would stay for ever."""
        with self.redis() as client:
            keys = [key for key in client.scan_iter(count=1000) if not is_permanent(key)]
            return [key for key in keys if client.ttl(key) == -1]

    def logs(self) -> str:
        """The end of every log, for a failure's report."""
        files = sorted((self.home / "logs").glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()[-2000:]}" for file in files)
