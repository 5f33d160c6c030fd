"""What finished jobs teach: reported by workers, kept in Redis, read by API processes and the training chore.

Of each pool (keys.PoolKeys): `learn`, a capped stream of outcomes; `pasts` and `past_at`, the last outputs of each tenant's
template; `timing`, what one process at a time, who holds `teacher`, has learned from the stream. No text is in any of them:
features and counts only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from broker.connection import Pipe
from broker.errors import BrokerError
from broker.keys import PoolKeys
from broker.policy import MEMORY, Memory
from broker.script import Argument, Call, ms, script

EVERYBODY = "*"  # the past of a pool, whatever the template
KEPT = 32  # outputs of one past
TIMING_TTL_S = 30 * 86_400.0
PAGE = 1000


class NotAnOutcome(BrokerError):
    """An entry of the stream that cannot be read: of another version of Headway."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished job. `past_key`: predictor/habits.py. `forecast_s`: what its run was predicted to take."""

    past_key: str
    features: tuple[float, ...]
    features_version: int
    prompt_type: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    run_s: float
    forecast_s: float
    first_s: float | None = None
    beside: int = 0
    ended: str = ""  # the engine's finish reason
    forecast_tokens: int = 0  # what its output was predicted to be, P50 and P90; 0: not known
    forecast_p90: int = 0

    def dump(self) -> bytes:
        """JSON; four digits after the point are more than any model needs."""
        times = [round(self.run_s, 4), round(self.forecast_s, 4)]
        times.append(-1.0 if self.first_s is None else round(self.first_s, 4))
        counts = [self.prompt_tokens, self.cached_tokens, self.output_tokens, self.beside]
        counts += [self.forecast_tokens, self.forecast_p90]
        said = [self.features_version, self.past_key, self.prompt_type, self.ended]
        return orjson.dumps([said, counts, times, list(map(_short, self.features))])


def read_outcome(entry: bytes) -> Outcome:
    """Raises NotAnOutcome."""
    try:
        (version, past_key, prompt_type, ended), counts, (run_s, forecast_s, first_s), features = (
            orjson.loads(entry)
        )
        prompt, cached, output, beside, p50, p90 = map(int, counts)
        return Outcome(
            past_key=str(past_key),
            features=tuple(map(float, features)),
            features_version=int(version),
            prompt_type=str(prompt_type),
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            run_s=float(run_s),
            forecast_s=float(forecast_s),
            first_s=None if first_s < 0 else float(first_s),
            beside=beside,
            ended=str(ended),
            forecast_tokens=p50,
            forecast_p90=p90,
        )
    except (TypeError, ValueError) as error:
        raise NotAnOutcome(f"an outcome that cannot be read: {error}") from None


def report(pool: str, outcomes: Sequence[Outcome], *, memory: Memory = MEMORY) -> Call:
    """Some hundreds at most, for others wait meanwhile."""
    k = PoolKeys(pool)
    args: list[Argument] = [memory.outcomes, memory.pasts, ms(memory.ttl_s), KEPT]
    for outcome in outcomes:
        args += (outcome.past_key, outcome.output_tokens, outcome.dump())
    return Call(script("learn"), (k.named("learn"), k.named("pasts"), k.named("past_at")), tuple(args))


async def read_pasts(pipe: Pipe, pool: str, *, keys: Sequence[str]) -> dict[str, list[float]]:
    """The last outputs by key, newest first; empty where nothing is known. Raises RedisAway."""
    found = await pipe.command("HMGET", PoolKeys(pool).named("pasts"), *keys)
    return {key: _outputs(value) for key, value in zip(keys, found, strict=True)}


@dataclass(frozen=True, slots=True)
class Entry:
    """An outcome and where it stands in the stream."""

    at: str
    outcome: Outcome


async def read_after(pipe: Pipe, pool: str, *, after: str, limit: int = PAGE) -> list[Entry]:
    """The newest outcomes behind `after` ("0": any), oldest of them first. Raises RedisAway."""
    key, start = PoolKeys(pool).named("learn"), "-" if after == "0" else f"({after}"
    return _entries(await pipe.command("XREVRANGE", key, "+", start, "COUNT", limit))[::-1]


async def read_all(pipe: Pipe, pool: str, *, most: int) -> list[Entry]:
    """As `read_after`, for many. Entries of other versions of Headway are left out. Raises RedisAway."""
    key, found, before = PoolKeys(pool).named("learn"), list[Entry](), "+"
    while len(found) < most:
        page = await pipe.command("XREVRANGE", key, before, "-", "COUNT", min(PAGE, most - len(found)))
        if not page:
            break
        found += _entries(page)
        before = f"({page[-1][0].decode()}"
    return found[::-1]


def _entries(page: Sequence[Any]) -> list[Entry]:
    found = []
    for at, fields in page:
        try:
            found.append(Entry(at.decode(), read_outcome(fields[1])))
        except NotAnOutcome:
            continue
    return found


async def read_timing(pipe: Pipe, pool: str) -> bytes | None:
    """What the teacher wrote last. Raises RedisAway."""
    found: bytes | None = await pipe.command("GET", PoolKeys(pool).named("timing"))
    return found


async def write_timing(pipe: Pipe, pool: str, *, document: bytes) -> None:
    """By the teacher only. Raises RedisAway, QueueFull."""
    await pipe.command("SET", PoolKeys(pool).named("timing"), document, "PX", ms(TIMING_TTL_S))


async def is_teacher(pipe: Pipe, pool: str, *, name: str, for_s: float) -> bool:
    """Whether this process is to learn the pool's timing for the next `for_s` seconds. Two may for a moment, after one was
    held up: both learn from the same entries, and what the later one writes stays. Raises RedisAway, QueueFull."""
    key = PoolKeys(pool).named("teacher")
    if await pipe.command("SET", key, name, "PX", ms(for_s), "NX") is not None:
        return True
    if await pipe.command("GET", key) != name.encode():
        return False
    return bool(await pipe.command("PEXPIRE", key, ms(for_s)))


def _outputs(value: bytes | None) -> list[float]:
    return [float(tokens) for tokens in value.split(b",") if tokens] if value else []


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 4)
