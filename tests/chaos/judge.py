"""What a caller's log, laid beside the engines' log, proves about Headway. Pure: it can be shown a made-up log.

The simulated engine's answer follows from the request alone, so the caller knows each text beforehand; and the id of an
answer is new with each attempt, so each piece of text says which attempt has written it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

ENDS = frozenset({"succeeded", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True)
class Sight:
    """One answer about a job, by whatever way. `status`: "" if Headway does not know it. `answer`: the engine's id of it,
    and `text`, where the result was shown.
    """

    status: str
    answer: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a stream. `kind`: chunk, reset, gap, error, end (the answer is whole), ended (otherwise). `token`, `seq`: of
    its id, where it has one.
    """

    kind: str
    answer: str = ""
    text: str = ""
    token: int = 0
    seq: int = 0


@dataclass(slots=True)
class Job:
    """One request, from the caller's side. `text`: its answer. `ids`: the jobs that Headway said it is; more than one is one too many.

    `accepted`: 2xx, or a first byte. `streams`: what each reader has read, over all of its connections. `attempts`: as Headway
    counted them at the end; 0: nobody asked.
    """

    tag: str
    text: str
    accepted: bool = False
    attempts: int = 0
    ids: set[str] = field(default_factory=set)
    sights: list[Sight] = field(default_factory=list)
    streams: list[list[Piece]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.sights) and self.sights[-1].status in ENDS


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no 2xx. `about`: the way that was asked."""

    about: str
    status: int
    retry_after: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` is one of lost, doubled, stale_write, stream_gap, mixed_up, refused_badly."""

    rule: str
    about: str
    why: str


RULES = ("lost", "doubled", "stale_write", "stream_gap", "mixed_up", "refused_badly")
# What a caller may be told: refused for now (with Retry-After), or that its accepted job has ended without an answer
FOR_NOW, OTHER_ENDS = (429, 503), (410, 502, 504)


def judge(jobs: Iterable[Job], *, asked: Mapping[str, str], refusals: Iterable[Refusal]) -> list[Finding]:
    """`asked`: the engines' log, from the answer's id to the tag of the request."""
    times = Counter(asked.values())
    found = list[Finding]()
    for job in jobs:
        found += [*_of_job(job), *_origin(job, asked)]
        if job.ended and 0 < job.attempts < times[job.tag]:
            why = f"engines were asked {times[job.tag]} times in {job.attempts} attempts"
            found.append(Finding("doubled", job.tag, why))
    unfair = ((refusal, _unfair(refusal)) for refusal in refusals)
    return found + [Finding("refused_badly", refusal.about, why) for refusal, why in unfair if why]


def count(findings: Iterable[Finding]) -> dict[str, int]:
    """Of each rule, jobs or refusals that broke it."""
    return dict.fromkeys(RULES, 0) | Counter(rule for rule, _ in {(f.rule, f.about) for f in findings})


def _unfair(refusal: Refusal) -> str:
    if refusal.status in FOR_NOW:
        return "" if refusal.retry_after else f"{refusal.status} without Retry-After"
    return "" if refusal.status in OTHER_ENDS else f"answered {refusal.status}"


def _of_job(job: Job) -> Iterator[Finding]:
    statuses = [sight.status for sight in job.sights]
    if job.accepted and not job.ended:
        yield Finding("lost", job.tag, f"accepted as {sorted(job.ids)}, and seen as {statuses}")
    if len(job.ids) > 1:
        yield Finding("doubled", job.tag, f"is {sorted(job.ids)}")
    ends = {sight.status for sight in job.sights if sight.status in ENDS}
    if len(ends) > 1:
        yield Finding("doubled", job.tag, f"ended as {sorted(ends)}")
    results = {sight.answer for sight in job.sights if sight.answer}
    if len(results) > 1:
        yield Finding("stale_write", job.tag, f"its result was {sorted(results)}")
    for sight in job.sights:
        if sight.answer and sight.text != job.text:
            yield Finding("mixed_up", job.tag, f"answered {sight.text!r}, not {job.text!r}")
    for stream in job.streams:
        yield from Reading(job, results).read(stream)


def _origin(job: Job, asked: Mapping[str, str]) -> Iterator[Finding]:
    """Every answer that was shown is one that an engine gave to this very request."""
    shown = {sight.answer for sight in job.sights if sight.answer}
    shown |= {piece.answer for stream in job.streams for piece in stream if piece.kind == "chunk"}
    for answer in shown:
        if asked.get(answer) != job.tag:
            yield Finding("mixed_up", job.tag, f"answer {answer} is of {asked.get(answer, 'no request')}")


class Reading:
    """A stream, piece by piece. `results`: the answers that the job was seen to have."""

    def __init__(self, job: Job, results: set[str]) -> None:
        self._job = job
        self._results = results
        self._begin()
        self._highest = 0

    def _begin(self) -> None:
        self._text, self._answer, self._seq = "", "", 0

    def read(self, stream: Iterable[Piece]) -> list[Finding]:
        """What is wrong with the first piece that is wrong."""
        return next((found for piece in stream if (found := list(self._piece(piece)))), [])

    def _piece(self, piece: Piece) -> Iterator[Finding]:
        match piece.kind:
            case "reset":
                self._begin()
            case "gap":
                yield self._gap("the stream says that chunks are missing")
            case "chunk":
                yield from self._chunk(piece)
            case "end":
                yield from self._end()

    def _chunk(self, piece: Piece) -> Iterator[Finding]:
        if piece.token < self._highest or (self._answer and piece.answer != self._answer):
            yield Finding("stale_write", self._job.tag, f"{piece} after {self._answer} of {self._highest}")
        if piece.token and piece.seq != self._seq + 1:
            yield self._gap(f"chunk {piece.token}-{piece.seq} after number {self._seq}")
        if not self._job.text.startswith(self._text + piece.text):
            yield self._gap(f"{piece.text!r} after {self._text!r}, of {self._job.text!r}")
        self._text += piece.text
        self._answer, self._seq = piece.answer, piece.seq
        self._highest = max(self._highest, piece.token)

    def _end(self) -> Iterator[Finding]:
        if self._text != self._job.text:
            yield self._gap(f"ended with {self._text!r}, of {self._job.text!r}")
        if self._results and self._answer not in self._results:
            yield Finding(
                "stale_write", self._job.tag, f"streamed {self._answer}, kept {sorted(self._results)}"
            )

    def _gap(self, why: str) -> Finding:
        return Finding("stream_gap", self._job.tag, why)
