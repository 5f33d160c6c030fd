"""Lua files as commands: read from `broker/lua/`, put together with the parts they include, known by their digest.

A `Call` is built without I/O and run by `connection.Pipe` (live), or by the replay with a virtual clock.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

Argument = str | bytes | int | float
PARTS = (
    "now",
    "tell",
    "place",
    "revive",
    "cap",
    "settle",
    "note",
    "requeue",
    "bury",
    "promote",
    "reconcile",
    "breaker",
    "spread",
    "prefix",
    "weigh",
    "pick",
    "take",
    "finish",
    "ahead",
    "admit",
)


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua command with its included parts. `sha` is what EVALSHA wants."""

    name: str
    source: bytes
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One command ready to be sent. Scripts check everything before they write, so a call is atomic."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]

    def evalsha(self) -> tuple[Argument, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def eval(self) -> tuple[Argument, ...]:
        """The fallback when the server has forgotten the script (restart, SCRIPT FLUSH, failover)."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)

    def sharded(self) -> "Call":
        """The same for a cluster in which a channel belongs to its slot (ADR 0008)."""
        return replace(self, script=sharded(self.script))


def lua(name: str) -> str:
    """The text of one file of `broker/lua/`."""
    return (resources.files("broker") / "lua" / f"{name}.lua").read_text()


@cache
def script(name: str) -> Script:
    """Loads a command and puts the parts that its INCLUDES line names before it, in the order of `PARTS`."""
    body = lua(name)
    match = re.search(r"^-- INCLUDES: (.+)$", body, re.MULTILINE)
    included = {part.strip() for part in match[1].split(",")} if match else set()
    source = "".join(lua(f"_{part}") for part in PARTS if part in included) + body
    data = source.encode()
    return Script(name, data, hashlib.sha1(data, usedforsecurity=False).hexdigest())


@cache
def sharded(script: Script) -> Script:
    """The variant that publishes inside the pool's shard instead of to the whole cluster."""
    source = script.source.replace(b"'PUBLISH'", b"'SPUBLISH'")
    return Script(script.name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def percent(share: float) -> int:
    return round(100 * share)
