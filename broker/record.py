"""What is kept of a job, read as the scripts write it: its hash, and the attempts that did not end it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from broker.job import Forecast, JobView, ServiceClass, Status

USAGE = {"prompt_used": "prompt_tokens", "output_used": "completion_tokens", "cached_used": "cached_tokens"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One that did not end its job. Times: seconds since the epoch. `claim`: why this worker took it, as `_take.lua` has it.

    `ended`: error, busy, drain, preempt or death. `error`: the document of what went wrong.
    """

    at: float
    claimed: float
    worker: str
    claim: str
    ended: str
    error: Any = None

    @classmethod
    def parse(cls, entry: bytes) -> "Attempt":
        """As `_note.lua` writes it."""
        found = orjson.loads(entry)
        return cls(
            found["at"] / 1000,
            found["claimed"] / 1000,
            worker=found["worker"],
            claim=found["why"],
            ended=found["ended"],
            error=found["error"],
        )


def _readers(
    fields: Mapping[bytes, bytes],
) -> tuple[Callable[[bytes], int], Callable[[bytes], float | None], Callable[[bytes], str]]:
    """Of numbers, of moments (seconds) and of text."""

    def number(name: bytes) -> int:
        return int(float(fields.get(name, b"0")))

    def at(name: bytes) -> float | None:
        return number(name) / 1000 if name in fields else None

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode()

    return number, at, text


def view(job_id: str, fields: Mapping[bytes, bytes], *, result: bytes | None) -> JobView:
    """Reads a job's hash. `result` is the answer, or the error of a job that failed."""
    number, at, text = _readers(fields)
    status = Status(text(b"status"))
    return JobView(
        job_id=job_id,
        status=status,
        service_class=ServiceClass(number(b"class")),
        endpoint=text(b"endpoint"),
        tenant=text(b"tenant"),
        forecast=_foretold(fields),
        attempts=number(b"attempts"),
        errors=number(b"errors"),
        deaths=number(b"deaths"),
        worker=text(b"worker"),
        created=number(b"created") / 1000,
        deadline=number(b"deadline") / 1000,
        claimed=at(b"claimed"),
        first_token=at(b"first"),
        finished=at(b"finished"),
        usage={USAGE[n]: number(n.encode()) for n in USAGE if n.encode() in fields},
        metadata=fields.get(b"meta", b""),
        result=result if status is Status.SUCCEEDED else None,
        error=result if status is Status.FAILED else None,
        redriven_as=text(b"redriven_as") or None,
        recounted=b"recounted" in fields,
        claim=text(b"why"),
        promoted=at(b"aged"),
        level=number(b"level") if b"level" in fields else None,
        heir=text(b"heir"),
        origin=text(b"origin"),
        route=text(b"route"),
        confidence=float(fields[b"conf"]) if b"conf" in fields else None,
        why=_why(result) if status is Status.ESCALATED else "",
    )


def _foretold(fields: Mapping[bytes, bytes]) -> Forecast:
    prompt, output, run_ms, tool = (
        float(fields.get(name, b"0")) for name in (b"ptok", b"otok", b"cost", b"tool")
    )
    return Forecast(int(prompt), int(output), run_ms / 1000, tool_call=tool / 100)


def _why(told: bytes | None) -> str:
    """From what the waiters of an escalated job were told: its successor, and the reason."""
    return (told or b"").partition(b" ")[2].decode()
