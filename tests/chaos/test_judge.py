"""The judge of `make chaos` finds what it is there to find, in logs that are made up."""

from dataclasses import replace

import pytest

from tests.chaos.judge import Job, Piece, Refusal, Sight, count, judge

TEXT = " the list of data"
GOOD = Sight("succeeded", "a2", TEXT)
# an attempt that broke off, and the one that was whole
STREAM = [
    Piece("chunk", "a1", " the", token=1, seq=1),
    Piece("reset", token=2),
    Piece("chunk", "a2", " the list", token=2, seq=1),
    Piece("chunk", "a2", " of data", token=2, seq=2),
    Piece("end"),
]
ASKED = {"a1": "t", "a2": "t", "b1": "other"}


def job(*sights: Sight, stream: list[Piece] | None = None) -> Job:
    streams = [] if stream is None else [stream]
    return Job("t", TEXT, accepted=True, ids={"job"}, sights=list(sights), streams=streams)


def found(*jobs: Job, refusals: tuple[Refusal, ...] = ()) -> set[str]:
    return {rule for rule, n in count(judge(jobs, asked=ASKED, refusals=refusals)).items() if n}


def test_good_log_is_found_good() -> None:
    jobs = (
        job(Sight("queued"), GOOD, GOOD, stream=STREAM),
        job(Sight("running"), Sight("cancelled"), stream=STREAM[:1]),
        Job("t", TEXT),  # never accepted
    )
    assert found(*jobs, refusals=(Refusal("chat", 503, True), Refusal("chat", 504, False))) == set()


WRONG_SIGHTS = {
    "still running": (job(Sight("running")), "lost"),
    "forgotten": (job(Sight("queued"), Sight("")), "lost"),
    "accepted and never seen again": (job(), "lost"),
    "two ends": (job(Sight("failed"), GOOD), "doubled"),
    "result replaced": (job(replace(GOOD, answer="a1"), GOOD), "stale_write"),
    "other text": (job(replace(GOOD, text=" the list of")), "mixed_up"),
    "another's answer": (job(replace(GOOD, answer="b1")), "mixed_up"),
    "nobody's answer": (job(replace(GOOD, answer="c1")), "mixed_up"),
}


@pytest.mark.parametrize("name", WRONG_SIGHTS)
def test_job_that_ended_wrongly_is_named(name: str) -> None:
    wrong, rule = WRONG_SIGHTS[name]
    assert found(wrong) == {rule}


def test_key_that_stood_for_two_jobs_is_named() -> None:
    twice = job(GOOD)
    twice.ids.add("job2")
    assert found(twice) == {"doubled"}


def test_engine_that_was_asked_more_often_than_the_job_was_tried_is_named() -> None:
    tried = job(GOOD)
    for tried.attempts, rules in ((2, set[str]()), (1, {"doubled"})):
        assert found(tried) == rules


WRONG_STREAMS = {
    "chunk missing": ([*STREAM[:2], STREAM[3], STREAM[4]], {"stream_gap"}),
    "chunk twice": ([*STREAM[:3], *STREAM[2:]], {"stream_gap"}),
    "end missing": ([*STREAM[:3], STREAM[4]], {"stream_gap"}),
    "gap told": ([*STREAM[:2], Piece("gap"), *STREAM[2:]], {"stream_gap"}),
    "no reset between attempts": ([STREAM[0], *STREAM[2:]], {"stale_write", "stream_gap"}),
    "stale worker's chunk": (
        [*STREAM[:3], Piece("chunk", "a1", " of data", token=1, seq=2), STREAM[4]],
        {"stale_write"},
    ),
    "older attempt after a reset": (
        [*STREAM[:3], Piece("reset"), Piece("chunk", "a1", TEXT, token=1, seq=1), STREAM[4]],
        {"stale_write"},
    ),
    "result of another attempt": ([Piece("chunk", "a1", TEXT, token=1, seq=1), STREAM[4]], {"stale_write"}),
}


@pytest.mark.parametrize("name", WRONG_STREAMS)
def test_stream_that_went_wrong_is_named(name: str) -> None:
    stream, rules = WRONG_STREAMS[name]
    assert found(job(GOOD, stream=stream)) == rules


def test_stream_without_ids_is_judged_by_its_text() -> None:
    pieces = [replace(piece, token=0, seq=0) for piece in STREAM]
    assert found(job(GOOD, stream=pieces)) == set()
    del pieces[2]
    assert found(job(GOOD, stream=pieces)) == {"stream_gap"}


@pytest.mark.parametrize("status", [500, 404, 409, 503, 429])
def test_refusal_without_a_way_on_is_named(status: int) -> None:
    assert found(refusals=(Refusal("chat", status, False),)) == {"refused_badly"}
