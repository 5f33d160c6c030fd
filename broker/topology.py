"""What a Redis URL stands for: one server, the master of a Sentinel group, or a cluster; and a cluster's slot map.

    redis://…  rediss://…  unix://…                            one server (redis-py's own forms)
    redis+sentinel://[user:password@]host[:port][,…]/service[/db]   the master that the sentinels name
    redis+cluster://[user:password@]host[:port][,…]             a cluster; the hosts are asked for the rest

Pure. `?tls=true` reaches the servers over TLS; `sentinel_username` and `sentinel_password` are for the sentinels, any
other option goes to redis-py with the server's address. Called by `locate.py`, and by the settings to check a URL.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from broker.errors import ConfigError

REDIS_PORT, SENTINEL_PORT = 6379, 26379
Kind = Literal["single", "sentinel", "cluster"]
KINDS: dict[str, Kind] = {
    "redis": "single",
    "rediss": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}
Address = tuple[str, int]
ANY = -1  # instead of a slot: every node will do


@dataclass(frozen=True, slots=True)
class Topology:
    """`hosts`: sentinels or cluster nodes to ask, in the order of the URL; empty for a single server."""

    kind: Kind
    url: str
    hosts: tuple[Address, ...] = ()
    service: str = ""
    db: int = 0
    login: str = ""  # "user:password@" as in the URL
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()
    sentinel_login: str = ""

    def node(self, address: Address) -> str:
        """URL of one server, as redis-py takes it."""
        scheme = "rediss" if self.tls else "redis"
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{scheme}://{self.login}{_netloc(address)}/{self.db}{query}"

    def sentinel(self, address: Address) -> str:
        """URL of one sentinel."""
        return f"{'rediss' if self.tls else 'redis'}://{self.sentinel_login}{_netloc(address)}"


def parse(url: str) -> Topology:
    """Raises ConfigError that says what is wrong; the message does not repeat the URL, which may hold a password."""
    parts = urlsplit(url)
    kind = KINDS.get(parts.scheme)
    if kind is None:
        raise ConfigError(f"no Redis URL; these start with {', '.join(f'{scheme}://' for scheme in KINDS)}")
    if kind == "single":
        return Topology(kind, url)
    login, _, hosts = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query))
    tls = options.pop("tls", "false").lower() in ("1", "true", "yes")
    names = options.pop("sentinel_username", ""), options.pop("sentinel_password", "")
    service, db = _path(parts, kind)
    return Topology(
        kind=kind,
        url=url,
        hosts=tuple(_hosts(hosts, SENTINEL_PORT if kind == "sentinel" else REDIS_PORT)),
        service=service,
        db=db,
        login=f"{login}@" if login else "",
        tls=tls,
        options=tuple(options.items()),
        sentinel_login=f"{quote(names[0])}:{quote(names[1])}@" if any(names) else "",
    )


def _path(parts: SplitResult, kind: Kind) -> tuple[str, int]:
    """Service and database."""
    service, _, db = parts.path.strip("/").partition("/")
    if kind == "cluster":
        if (service or "0") != "0" or db:
            raise ConfigError("a cluster has the database 0 only: the URL ends after the hosts")
        return "", 0
    if not service or not (db or "0").isdigit():
        raise ConfigError(
            "a Sentinel URL ends in the name of the master: …host:26379/mymaster, or …/mymaster/0"
        )
    return service, int(db or 0)


def _hosts(text: str, port: int) -> Iterator[Address]:
    for item in text.split(","):
        one = urlsplit(f"//{item}")
        try:
            number = one.port or port
        except ValueError:
            raise ConfigError(f"{item!r} has no port number after the colon") from None
        if not one.hostname:
            raise ConfigError("a host is missing; hosts are separated by commas")
        yield one.hostname, number


def _netloc(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def slot_of(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def tag_of(key: str) -> str:
    """What of a key decides its slot: the text between the braces, else the whole."""
    _, brace, rest = key.partition("{")
    inner, close, _ = rest.partition("}")
    return inner if brace and close and inner else key


@dataclass(slots=True)
class SlotMap:
    """Which master serves which slot, as far as it is known. Masters are node URLs."""

    masters: list[str | None] = field(default_factory=lambda: [None] * REDIS_CLUSTER_HASH_SLOTS)

    def at(self, slot: int) -> str | None:
        return self.masters[slot]

    def first(self) -> str | None:
        """Some master."""
        return next(filter(None, self.masters), None)

    def move(self, slot: int, node: str) -> None:
        self.masters[slot] = node

    def forget(self, node: str) -> None:
        """Its slots have to be looked up before they are used again."""
        self.masters = [None if master == node else master for master in self.masters]

    def nodes(self) -> list[str]:
        return sorted({master for master in self.masters if master is not None})


def read_slots(answer: Sequence[Any], topology: Topology, *, asked: Address) -> SlotMap:
    """From the raw answer of CLUSTER SLOTS. A node that does not know its own host leaves it empty: then it is `asked`'s."""
    slots = SlotMap()
    for first, last, master, *_ in answer:
        host = master[0].decode() if master[0] else ""
        node = topology.node((host or asked[0], int(master[1])))
        slots.masters[int(first) : int(last) + 1] = [node] * (int(last) - int(first) + 1)
    return slots
