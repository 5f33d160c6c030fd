"""The commands on batches: each Lua file in `broker/lua/batch/` with the keys and arguments it takes.

As `scripts.py`: built here without I/O, run by `connection.Pipe`; float seconds become milliseconds.
"""

import hashlib
from dataclasses import dataclass
from functools import cache

from broker.keys import BatchKeys
from broker.script import Argument, Call, Script, lua, ms

GRACE_S = 15.0  # a message that has not been taken after this is sent again,
MAX_GRACE_S = 3600.0  # and again after twice as long each time
PLAN, FINALIZE = "plan", "finalize"


@cache
def script(name: str) -> Script:
    """Every batch command may use the clock and what the units share."""
    source = (lua("_now") + lua("batch/_unit") + lua(f"batch/{name}")).encode()
    return Script(f"batch/{name}", source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Held:
    """The right to work on one unit of a batch, until the lease runs out. Every write carries `token`."""

    batch_id: str
    unit: str
    token: int

    @property
    def keys(self) -> tuple[str, str, str]:
        k = BatchKeys(self.batch_id)
        return (k.batch, k.todo, k.unit(self.unit))


@dataclass(frozen=True, slots=True)
class Tally:
    """Lines of one slice by how they ended. `expired` ones count as failed as well."""

    completed: int = 0
    failed: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """One slice: bytes `start` to before `end` of the input, the number of its first line, its count of lines.

    `duplicates`: the numbers of those of its lines that repeat a custom_id of an earlier line of the file.
    """

    number: int
    start: int
    end: int
    first: int
    lines: int
    duplicates: tuple[int, ...] = ()


def create(batch_id: str, fields: dict[str, Argument], *, window_s: float, ttl_s: float) -> Call:
    k = BatchKeys(batch_id)
    pairs = [item for pair in fields.items() for item in pair]
    return Call(script("create"), (k.batch, k.todo), (ms(window_s), ms(ttl_s), ms(GRACE_S), *pairs))


def take(batch_id: str, unit: str, *, lease_s: float) -> Call:
    k = BatchKeys(batch_id)
    return Call(script("take"), (k.batch, k.todo, k.unit(unit)), (unit, ms(lease_s)))


def renew(held: Held, tally: Tally, *, lease_s: float) -> Call:
    args = (held.unit, held.token, ms(lease_s), tally.completed, tally.failed)
    return Call(script("renew"), held.keys, args)


def cut_slice(plan: Held, cut: Cut) -> Call:
    k = BatchKeys(plan.batch_id)
    duplicates = ",".join(map(str, cut.duplicates))
    fields = (
        "start",
        cut.start,
        "end",
        cut.end,
        "first",
        cut.first,
        "lines",
        cut.lines,
        "duplicates",
        duplicates,
    )
    return Call(script("slice"), (k.batch, k.unit(PLAN), k.unit(str(cut.number))), (plan.token, *fields))


def planned(plan: Held, *, lines: int, slices: int, at_once: int) -> Call:
    return Call(script("planned"), plan.keys, (plan.token, lines, slices, at_once, ms(GRACE_S)))


def done(held: Held, tally: Tally) -> Call:
    counts = (tally.completed, tally.failed, tally.expired)
    return Call(script("done"), held.keys, (held.unit, held.token, *counts, ms(GRACE_S)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a batch ends. `errors`: JSON list of what made the whole of it fail, or empty."""

    ttl_s: float
    errors: bytes = b""
    output_file: str = ""
    error_file: str = ""


def end(held: Held, outcome: Outcome) -> Call:
    files = (outcome.output_file, outcome.error_file)
    return Call(script("end"), held.keys, (held.unit, held.token, outcome.errors, *files, ms(outcome.ttl_s)))


def cancel(batch_id: str) -> Call:
    k = BatchKeys(batch_id)
    return Call(script("cancel"), (k.batch, k.todo), (ms(GRACE_S),))


def due(batch_id: str, *, limit: int) -> Call:
    k = BatchKeys(batch_id)
    return Call(script("due"), (k.batch, k.todo), (limit, ms(GRACE_S), ms(MAX_GRACE_S)))
