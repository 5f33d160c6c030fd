"""Where a master is, as questions to those who may know: asked over asyncio by `locate.py`, over plain sockets by `thread_link.py`.

Pure: a search yields (URL of the server to ask, command), is sent the raw answer or thrown what went wrong instead, and
returns what it has found. It raises RedisAway when nobody is left to ask.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import RedisError

from broker.errors import RedisAway
from broker.topology import Address, SlotMap, Topology, read_slots

T = TypeVar("T")
Question = tuple[str, tuple[str, ...]]
Search = Generator[Question, Any, T]
TROUBLE = (RedisError, OSError)  # TimeoutError is an OSError


@dataclass(frozen=True, slots=True)
class Master:
    """`host`: the sentinel that named it."""

    url: str
    host: Address


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """`hosts`: all nodes of the cluster, replicas too: in the next failover they may be all that is left to ask."""

    slots: SlotMap
    hosts: list[Address]


def master(topology: Topology, hosts: Sequence[Address]) -> Search[Master]:
    """By the sentinels. Their word is checked: one may not have heard of a failover yet."""
    trouble = "no answer"
    for host in hosts:
        try:
            named = yield topology.sentinel(host), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", topology.service)
            url = topology.node((named[0].decode(), int(named[1]))) if named else ""
            role = (yield url, ("ROLE",))[0] if url else b""
        except TROUBLE as error:
            trouble = _said(host, error)
            continue
        if role == b"master":
            return Master(url, host)
        trouble = f"{host[0]}:{host[1]} knows no master {topology.service!r}"
    raise RedisAway(f"no sentinel names a master ({trouble})")


def cluster_map(topology: Topology, hosts: Sequence[Address]) -> Search[ClusterMap]:
    """By the nodes."""
    trouble = "no answer"
    for host in hosts:
        try:
            rows = yield topology.node(host), ("CLUSTER", "SLOTS")
        except TROUBLE as error:
            trouble = _said(host, error)
            continue
        slots = read_slots(rows, topology, asked=host)
        if slots.nodes():
            found = {
                (node[0].decode() if node[0] else host[0], int(node[1])) for row in rows for node in row[2:]
            }
            return ClusterMap(slots, [*topology.hosts, *sorted(found - set(topology.hosts))])
        trouble = f"{host[0]}:{host[1]} knows no slots"
    raise RedisAway(f"no node of the cluster answers ({trouble})")


def _said(host: Address, error: Exception) -> str:
    return f"{host[0]}:{host[1]}: {str(error) or 'no answer'}"
