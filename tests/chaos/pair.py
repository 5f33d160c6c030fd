"""Two redis-servers, one the other's replica, and a clock that the scripts read instead of the server's own."""

import re
import subprocess
from dataclasses import replace
from functools import cache
from hashlib import sha1
from pathlib import Path

import redis

from api.cli.redis_server import RedisServer
from broker.script import Call, Script
from tests.broker.jobs import KEYS
from tests.conditions import wait_until_sync
from tests.conftest import start_redis

CLOCK = KEYS.named("clock")  # in the pool's slot, and replicated like anything else
TUNED = {"appendonly": "no", "repl-diskless-sync": "no", "hz": "200"}  # a copy is made in some tens of ms


def on_our_clock(call: Call) -> Call:
    return replace(call, script=_on_our_clock(call.script))


@cache
def _on_our_clock(script: Script) -> Script:
    clock = f"local function now_ms() return tonumber(redis.call('GET', '{CLOCK}')) end\n"
    source = re.sub(r"local function now_ms\(\).*?\nend\n", clock, script.source.decode(), flags=re.DOTALL)
    return Script(script.name, source.encode(), sha1(source.encode(), usedforsecurity=False).hexdigest())


class Pair:
    """`master` is a client of whichever is the master now, `url` its address."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self._servers: list[RedisServer] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.frozen = False
        for name in ("one", "two"):
            (directory / name).mkdir(parents=True)
            server, process = start_redis(binary, directory / name)
            self._servers.append(server)
            self._processes.append(process)
        self._clients = [redis.Redis.from_url(server.url) for server in self._servers]
        for client in self._clients:
            for option, value in TUNED.items():
                client.config_set(option, value)
        self._follow()

    @property
    def master(self) -> "redis.Redis":
        return self._clients[0]

    @property
    def url(self) -> str:
        return self._servers[0].url

    @property
    def version(self) -> str:
        return str(self.master.info("server")["redis_version"])

    def begin(self) -> None:
        """Empties both."""
        if self.frozen:
            self._follow()
        self.master.flushall()
        self._catch_up()

    def freeze(self) -> None:
        """From here on the replica misses what the master does."""
        if not self.frozen:
            self._catch_up()
            self._clients[1].replicaof("127.0.0.1", "1")
            self.frozen = True

    def fail_over(self) -> None:
        """The replica is promoted, and the old master becomes its replica: what it alone knew is gone."""
        if not self.frozen:
            self._catch_up()
        self._clients[1].replicaof("NO", "ONE")
        self._clients.reverse()
        self._servers.reverse()
        self._processes.reverse()
        self._follow()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for process in self._processes:
            process.kill()
            process.wait(timeout=10)

    def _follow(self) -> None:
        self._clients[1].replicaof("127.0.0.1", str(self._servers[0].port))
        self.frozen = False

    def _catch_up(self) -> None:
        """What WAIT waits for, and a link that is up."""

        def caught_up() -> bool:
            linked = self._clients[1].info("replication")["master_link_status"] == "up"
            return linked and int(self.master.execute_command("WAIT", 1, 1000)) == 1  # type: ignore[no-untyped-call]

        wait_until_sync(caught_up, timeout_s=30, what="the replica follows")
