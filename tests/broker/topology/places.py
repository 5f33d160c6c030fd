"""Servers on loopback for as long as a test session: one, a cluster, or a master with a replica and three sentinels.

Each is a process of ours on a free port, ended by its own pid. Clusters are put together by CLUSTER commands, so that
no redis-cli is needed.
"""

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis

from api.cli.redis_server import free_port, port_is_free, wait_for
from tests.conditions import wait_until_sync

BUS = 10_000  # a node's bus listens on its port plus this
SLOTS = 16_384
Options = dict[str, str]
START_S = 15.0
TRIES = 5


@dataclass(slots=True)
class Node:
    """One process. `argv` starts it again with its data."""

    port: int
    argv: list[str]
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def ask(self, *command: str | bytes | int) -> Any:
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def start_again(self) -> None:
        self.process = subprocess.Popen(self.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_for(self.url, timeout_s=START_S)


@dataclass(slots=True)
class Place:
    """Where Headway's queue may live. `nodes` hold data; `sentinels` do not."""

    name: str
    url: str
    nodes: list[Node]
    sentinels: list[Node] = field(default_factory=list)

    def masters(self) -> list[Node]:
        up = [node for node in self.nodes if node.process.poll() is None]
        return [node for node in up if is_master(node)]


@dataclass(frozen=True, slots=True)
class Ground:
    """What servers are started from. `stack` ends them, however far the start has come."""

    binary: Path
    directory: Path
    stack: ExitStack


def start_single(ground: Ground) -> Place:
    node = start_node(ground, "one", {"appendonly": "yes", "save": ""})
    return Place("single", node.url, [node])


def start_node(ground: Ground, name: str, options: Options) -> Node:
    directory = ground.directory / name
    directory.mkdir()

    def argv(port: int) -> list[str]:
        base = {"port": str(port), "bind": "127.0.0.1", "dir": str(directory)}
        words = (word for key, value in (base | options).items() for word in (f"--{key}", value))
        return [str(ground.binary), *words]

    return _start(ground, argv)


def _start(ground: Ground, argv: Callable[[int], list[str]]) -> Node:
    """A free port may be taken by somebody else's server meanwhile, which then answers in its place."""
    for _ in range(TRIES):
        port = _port()
        words = argv(port)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        node = Node(port, words, process)
        ground.stack.callback(node.kill)
        if wait_for(node.url, timeout_s=START_S) and f"process_id:{process.pid}\r" in node.ask(
            "INFO", "server"
        ):
            return node
    raise AssertionError(f"{ground.binary} did not start")


def _port() -> int:
    """With room for a bus port beside it."""
    while (port := free_port()) > 65_535 - BUS or not port_is_free(port + BUS):
        pass
    return port


def start_cluster(ground: Ground, *, replicas: int) -> Place:
    """Three masters; the first `replicas` of them have one replica each."""
    options = {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": "1000",
        "cluster-replica-validity-factor": "0",
        "cluster-require-full-coverage": "no",
        "cluster-allow-replica-migration": "no",
        "repl-diskless-sync-delay": "0",
        "appendonly": "yes",
        "save": "",
    }
    nodes = [start_node(ground, str(number), options) for number in range(3 + replicas)]
    masters, others = nodes[:3], nodes[3:]
    for number, master in enumerate(masters):
        first, end = number * SLOTS // 3, (number + 1) * SLOTS // 3
        master.ask("CLUSTER", "ADDSLOTS", *range(first, end))
        master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for node in nodes[1:]:
        node.ask("CLUSTER", "MEET", "127.0.0.1", masters[0].port)
    for node in nodes:
        _says(node, " connected", "CLUSTER", "NODES", times=len(nodes))
    for master, replica in zip(masters, others, strict=False):
        replica.ask("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID"))
    for node in others:
        wait_until_sync(partial(follows, node), timeout_s=START_S)
    for node in nodes:
        _says(node, "cluster_state:ok", "CLUSTER", "INFO")
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes[:2])
    return Place("cluster", f"redis+cluster://{hosts}", nodes)


def start_sentinel(ground: Ground) -> Place:
    options = {"appendonly": "yes", "save": "", "repl-diskless-sync-delay": "0"}
    master = start_node(ground, "master", options)
    replica = start_node(ground, "replica", options | {"replicaof": f"127.0.0.1 {master.port}"})
    wait_until_sync(partial(follows, replica), timeout_s=START_S)
    sentinels = [_start_watcher(ground, f"sentinel-{n}", master=master.port) for n in range(3)]
    for sentinel in sentinels:
        _says(sentinel, "status=ok", "INFO", "sentinel")
        _says(sentinel, "slaves=1,sentinels=3", "INFO", "sentinel")
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    return Place("sentinel", f"redis+sentinel://{hosts}/queue", [master, replica], sentinels)


def _start_watcher(ground: Ground, name: str, *, master: int) -> Node:
    directory = ground.directory / name
    directory.mkdir()

    def argv(port: int) -> list[str]:
        file = directory / "sentinel.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor queue 127.0.0.1 {master} 2\n"
            "sentinel down-after-milliseconds queue 600\nsentinel failover-timeout queue 1000\n"
        )
        return [str(ground.binary), str(file), "--sentinel"]

    return _start(ground, argv)


def is_master(node: Node) -> bool:
    """Not while it becomes one or stops to be it: sentinels close connections when they change a server."""
    try:
        return bool(node.ask("ROLE")[0] == "master")
    except redis.ConnectionError:
        return False


def follows(node: Node) -> bool:
    """Whether it is a replica that has all its master's data. As for `is_master`."""
    try:
        return "master_link_status:up" in node.ask("INFO", "replication")
    except redis.RedisError:
        return False


def _says(node: Node, text: str, *command: str, times: int = 1) -> None:
    wait_until_sync(lambda: node.ask(*command).count(text) == times, timeout_s=START_S)
