"""Which of a route's two pools a request goes to. Pure: what is predicted of it, and how the fleet is, come as arguments.

The threshold is the least probability with which the small model has to suffice. It is moved by load: where one pool
makes requests wait beyond the route's SLO and the other less, the other gets more, in proportion to the excess.
"""

import re
from dataclasses import dataclass

_RECORD = re.compile(
    r"(?P<pool>\S+) p=(?P<p>[0-9.]+) t=(?P<t>[0-9.]+) (?P<kind>\S+) by (?P<route>\S+)(?: (?P<why>\S+))?"
)


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """`wait_s`: until a request that comes now would begin there. `open`: it is served and takes new requests."""

    open: bool = True
    wait_s: float = 0.0


IDLE = PoolLoad()


@dataclass(frozen=True, slots=True)
class Rule:
    """A route as placement sees it. `threshold` in 0..1."""

    route: str
    small: str
    large: str
    threshold: float
    slo_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request goes. `why`: "" by the threshold; "load": that was moved; "sticky": the conversation is there;
    "degraded:POOL": nobody serves POOL, which was wanted."""

    route: str
    pool: str
    p: float
    threshold: float
    kind: str
    why: str = ""

    @property
    def text(self) -> str:
        """As the header and the job's record say it."""
        words = f"{self.pool} p={self.p:.2f} t={self.threshold:.2f} {self.kind} by {self.route}"
        return f"{words} {self.why}" if self.why else words


def degraded_from(route: str) -> str:
    """The pool that a job's record says it was meant for, before any other; "" if it is there."""
    return route.partition(" degraded:")[2].partition(" ")[0]


def parse_record(text: str) -> Placed | None:
    """What `Placed.text` says; None for anything else."""
    found = _RECORD.fullmatch(text)
    if found is None:
        return None
    return Placed(
        route=found["route"],
        pool=found["pool"],
        p=float(found["p"]),
        threshold=float(found["t"]),
        kind=found["kind"],
        why=found["why"] or "",
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is known of a request. `p`: that the small model suffices. `sticky`: the pool that its conversation is in."""

    p: float
    kind: str = "chat"
    sticky: str = ""


def moved(threshold: float, *, small: PoolLoad, large: PoolLoad, slo_s: float) -> float:
    """The threshold under load."""
    if large.wait_s > slo_s and large.wait_s > small.wait_s:
        return threshold * max(slo_s, small.wait_s) / large.wait_s
    if small.wait_s > slo_s and small.wait_s > large.wait_s:
        return 1.0 - (1.0 - threshold) * max(slo_s, large.wait_s) / small.wait_s
    return threshold


def place(rule: Rule, wanted: Wanted, *, small: PoolLoad = IDLE, large: PoolLoad = IDLE) -> Placed:
    """A conversation stays where it is while that is open; a pool that is not open is avoided if the other one is."""
    threshold = moved(rule.threshold, small=small, large=large, slo_s=rule.slo_s)
    pool = rule.small if wanted.p >= threshold else rule.large
    plain = rule.small if wanted.p >= rule.threshold else rule.large
    why = "" if pool == plain else "load"
    if wanted.sticky in (rule.small, rule.large):
        pool, why = wanted.sticky, "sticky"
    here, there = (small, large) if pool == rule.small else (large, small)
    if not here.open and there.open:
        pool, why = rule.large if pool == rule.small else rule.small, f"degraded:{pool}"
    return Placed(rule.route, pool, wanted.p, threshold, wanted.kind, why)
