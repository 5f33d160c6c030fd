"""What callers say of answers of routed jobs: kept as the route's numbers and the outcome, never with any text."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.connection import Pipe
from broker.job import JobView
from broker.keys import FEEDBACK, FLOORS, rated_key
from broker.placement import parse_record
from broker.policy import DAY_S
from broker.script import ms

MOST_KEPT = 50_000
RATED_S = 7 * DAY_S  # a job's second rating is told from its first for so long
FLOORS_S = 30 * DAY_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """One rated answer. `p`: that the small model would suffice, as predicted; `why`: it was escalated, or "".

    `confidence` None: no verdict fell by it.
    """

    route: str
    kind: str
    p: float
    pool: str
    good: bool
    why: str = ""
    confidence: float | None = None


def outcome_of(job: JobView, *, good: bool) -> Outcome | None:
    """None for a job that no route has placed."""
    placed = parse_record(job.route)
    if placed is None:
        return None
    first = job.first or job
    return Outcome(placed.route, placed.kind, placed.p, job.pool, good, first.why, first.confidence)


async def rate(pipe: Pipe, job: JobView, *, good: bool) -> bool:
    """Whether it counted: a job is rated once. Jobs of no route are noted as rated and teach nothing.

    Raises RedisAway, QueueFull (memory is full).
    """
    value = "good" if good else "bad"
    if not await pipe.command("SET", rated_key(job.job_id), value, "NX", "PX", ms(RATED_S)):
        return False
    outcome = outcome_of(job, good=good)
    if outcome is not None:
        fields = {
            "route": outcome.route,
            "kind": outcome.kind,
            "p": f"{outcome.p:.3f}",
            "pool": outcome.pool,
            "good": str(int(good)),
            "why": outcome.why,
            "conf": "" if outcome.confidence is None else f"{outcome.confidence:.4f}",
        }
        words = [word for pair in fields.items() for word in pair]
        await pipe.command("XADD", FEEDBACK, "MAXLEN", "~", MOST_KEPT, "*", *words)
    return True


async def latest(pipe: Pipe, n: int) -> list[Outcome]:
    """The newest first."""
    entries = await pipe.command("XREVRANGE", FEEDBACK, "+", "-", "COUNT", n)
    return [_outcome(dict(zip(flat[::2], flat[1::2], strict=True))) for _, flat in entries]


async def keep_floors(pipe: Pipe, floors: Mapping[str, float]) -> None:
    """By "<route> <kind>"; kind "*": the threshold of the route itself."""
    if floors:
        words = [word for name, floor in floors.items() for word in (name, f"{floor:.4f}")]
        await pipe.command("HSET", FLOORS, *words)
        await pipe.command("PEXPIRE", FLOORS, ms(FLOORS_S))


async def floors(pipe: Pipe) -> dict[str, float]:
    """What `keep_floors` has kept."""
    flat = await pipe.command("HGETALL", FLOORS)
    return {name.decode(): float(floor) for name, floor in zip(flat[::2], flat[1::2], strict=True)}


def _outcome(fields: Mapping[bytes, bytes]) -> Outcome:
    text = {name.decode(): value.decode() for name, value in fields.items()}
    return Outcome(
        route=text["route"],
        kind=text["kind"],
        p=float(text["p"]),
        pool=text["pool"],
        good=text["good"] == "1",
        why=text["why"],
        confidence=float(text["conf"]) if text["conf"] else None,
    )
