"""What happened to a job, in order, in words for people; and what was foretold of it beside what came. Pure.

Everything is read off what is kept anyway: the job's record, and the attempts that did not end it (broker/record.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from api.documents import parsed
from broker.job import JobView, ServiceClass, Status, pool_of
from broker.placement import degraded_from
from broker.record import Attempt
from broker.rescue import POOL_OUT
from predictor.prefix import CUTS

Document = dict[str, Any]
BYTES_PER_TOKEN = 4  # of English text, roughly
# As `_take.lua` writes it
HOMES = {
    "h": "from its own queue",
    "s": "from another shard, as its own had nothing",
    "e": "from another pool that it serves",
    "r": "to bring it to another pool, as nobody serves this one",
}
WHY = {
    "a": "it had been promoted",
    "w": "its prefix is warm there",
    "m": "its prefix is warm on another worker, which had no room for it",
    "k": "which kept room for it",
    "p": "as a probe of the worker's breaker",
}
ENDED = {
    "error": "engine_error",
    "busy": "engine_busy",
    "drain": "handed_back",
    "preempt": "preempted",
    "death": "worker_died",
}


def story(job: JobView, histories: Sequence[Sequence[Attempt]]) -> list[Document]:
    """Events by time, each {at, event, detail}; all passes of a job that was escalated. `histories`: of each pass, the
    first one first."""
    events = [
        event
        for each, history in zip(job.passes, histories, strict=True)
        for event in _pass(each, history, follows=each is not job.passes[0])
    ]
    events.sort(key=lambda event: float(event["at"]))  # stable: what is of one moment stays in order
    return events


def forecasts(job: JobView, *, start_s: float | None = None) -> Document:
    """Of the last pass. `start_s`: as long as it waits, seconds until it is predicted to start."""
    ran = job.status is Status.SUCCEEDED
    run_s = _between(job.claimed, job.finished) if ran else None
    wait_s = _between(job.created, job.claimed)
    used = job.usage
    return {
        "wait_s": _pair(start_s, wait_s),
        "run_s": _pair(round(job.forecast.run_s, 3), run_s),
        "prompt_tokens": _pair(job.forecast.prompt_tokens, used.get("prompt_tokens")),
        "output_tokens": _pair(job.forecast.output_tokens, used.get("completion_tokens")),
    }


def attempt_document(attempt: Attempt) -> Document:
    return {
        "worker": attempt.worker,
        "claimed_at": attempt.claimed,
        "ended_at": attempt.at,
        "ended": ENDED.get(attempt.ended, attempt.ended),
        "error": attempt.error,
    }


def claim_words(claim: str) -> str:
    """Why a worker took a job, as `_take.lua` notes it, such as `haw3`."""
    words = [HOMES.get(claim[:1], "")]
    for letter, following in pairwise([*claim[1:], ""]):
        word = WHY.get(letter, "")
        if letter == "w" and following.isdigit() and 0 < int(following) <= len(CUTS):
            word += f", {CUTS[int(following) - 1] // BYTES_PER_TOKEN:,} tokens or more of it"
        words.append(word)
    return "; ".join(word for word in words if word)


def _pass(job: JobView, history: Sequence[Attempt], *, follows: bool) -> Iterator[Document]:
    if not follows:
        yield _event(job.created, "admitted", detail=_admission(job))
    yield _event(job.created, "forecast", detail=_foretold(job))
    yield _event(job.created, "queued", detail=f"in {job.pool}" + (f" as {job.job_id}" if follows else ""))
    if job.promoted is not None and job.level is not None:
        yield _event(job.promoted, "promoted", detail=f"to the level of {ServiceClass(job.level).name}")
    for attempt in history:
        yield _event(attempt.claimed, "claimed", detail=_claimed(attempt.worker, attempt.claim))
        yield _event(attempt.at, ENDED.get(attempt.ended, attempt.ended), detail=_returned(attempt))
    if job.claimed is not None and job.claimed not in {attempt.claimed for attempt in history}:
        yield _event(job.claimed, "claimed", detail=_claimed(job.worker, job.claim))
    if job.first_token is not None:
        yield _event(job.first_token, "first_token", detail=_since_claim(job, history))
    if job.finished is not None:
        yield _event(job.finished, job.status, detail=_end(job))


def _admission(job: JobView) -> str:
    deadline = f"deadline {_seconds(job.deadline - job.created)}"
    degraded = degraded_from(job.route)
    more = [job.route and f"route: {job.route}", degraded and f"meant for {degraded}"]
    return ", ".join(
        [job.service_class.name, f"tenant {job.tenant}", deadline, *(each for each in more if each)]
    )


def _foretold(job: JobView) -> str:
    need = job.forecast
    return f"{_seconds(need.run_s)} to run, {need.prompt_tokens:,} tokens in, {need.output_tokens:,} out"


def _claimed(worker: str, claim: str) -> str:
    words = claim_words(claim)
    return f"by {worker}" + (f": {words}" if words else "")


def _returned(attempt: Attempt) -> str:
    ran = f"after {_seconds(attempt.at - attempt.claimed)} on {attempt.worker}"
    code = _code(attempt.error)
    return f"{ran}: {code}" if code and attempt.ended != "preempt" else ran


def _code(error: Any) -> str:
    return str(error.get("code") or "") if isinstance(error, dict) else ""


def _since_claim(job: JobView, history: Iterable[Attempt]) -> str:
    """A later attempt does not begin the answer anew for whoever reads along: the first one counts."""
    assert job.first_token is not None
    claims = [*(attempt.claimed for attempt in history), *([job.claimed] if job.claimed is not None else [])]
    before = [claimed for claimed in claims if claimed <= job.first_token]
    return f"{_seconds(job.first_token - max(before))} after the claim" if before else ""


def _end(job: JobView) -> str:
    match job.status:
        case Status.ESCALATED:
            why = "nobody serves it" if job.why == POOL_OUT else f"not good enough ({job.why})"
            words = f"{why}: {pool_of(job.heir)} takes over"
        case Status.SUCCEEDED:
            words = _ran(job)
        case Status.EXPIRED:
            words = "the deadline passed" + (
                f" {_ran(job)} of running" if job.claimed else " while it waited"
            )
        case _:
            words = _ran(job) if job.claimed else "before any worker took it"
            words += f": {code}" if (code := _code(parsed(job.error))) else ""
    return ", ".join([words, *_counted(job)])


def _ran(job: JobView) -> str:
    return f"after {_seconds((job.finished or 0.0) - (job.claimed or job.finished or 0.0))}"


def _counted(job: JobView) -> Iterator[str]:
    if not job.usage:
        return
    cached = job.usage.get("cached_tokens", 0)
    saved = f" ({cached:,} of them cached)" if cached else ""
    yield f"{job.usage.get('prompt_tokens', 0):,} tokens in{saved}"
    yield f"{job.usage.get('completion_tokens', 0):,} out"


def _event(at: float, event: str, *, detail: str) -> Document:
    return {"at": at, "event": event, "detail": detail}


def _pair(predicted: float | None, actual: float | None) -> Document:
    return {"predicted": predicted, "actual": actual}


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 3)


def _seconds(span_s: float) -> str:
    """To three digits, in the unit that suits."""
    if span_s < 1:
        return f"{max(0.0, span_s) * 1000:.0f} ms"
    if span_s < 120:
        return f"{span_s:.3g} s"
    return f"{span_s / 60:.3g} min" if span_s < 7200 else f"{span_s / 3600:.3g} h"
