"""What `headway job show` draws."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from api.cli.story import bar, show_story

JOB: dict[str, Any] = {
    "id": f"job_{'a' * 26}.small",
    "status": "succeeded",
    "class": "P1",
    "pool": "small",
    "endpoint": "/v1/chat/completions",
    "story": [
        {"at": 100.0, "event": "admitted", "detail": "P1, tenant default, deadline 60 s, route: auto: small 0.93"},
        {"at": 100.0, "event": "queued", "detail": "in small"},
        {"at": 103.0, "event": "claimed", "detail": "by [w7]: from its own queue; its prefix is warm there"},
        {"at": 106.0, "event": "engine_error", "detail": "after 3 s on [w7]: engine_broken"},
        {"at": 110.0, "event": "succeeded", "detail": "after 4 s, 42 tokens in, 133 out"},
    ],
    "forecast": {
        "wait_s": {"predicted": None, "actual": 3.0},
        "run_s": {"predicted": 2.0, "actual": 4.0},
        "prompt_tokens": {"predicted": 40, "actual": 42},
        "output_tokens": {"predicted": 1000, "actual": None},
    },
}  # fmt: skip


def drawn(job: dict[str, Any], *, width: int = 80, terminal: bool = True) -> list[str]:
    out = StringIO()
    show_story(job, Console(file=out, width=width, force_terminal=terminal, color_system=None))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_terminal_of_80_columns_shows_every_word_and_where_the_time_went() -> None:
    lines = drawn(JOB)
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"job_{'a' * 26}.small  succeeded  P1  small  /v1/chat/completions"
    assert lines[4:6] == [
        " 0.000 s ████           queued       in small",
        " 3.000 s     ████       claimed      by [w7]: from its own queue; its prefix is",
    ]
    assert lines[-3:] == [
        "running      2.000 s  4.000 s   +100%",
        "tokens in         40       42     +5%",
        "tokens out     1,000        -",
    ]


def test_what_is_no_terminal_gets_one_plain_line_a_step() -> None:
    lines = drawn(JOB, terminal=False, width=40)
    assert lines[3] == "  3.000 s  claimed       by [w7]: from its own queue; its prefix is warm there"
    assert lines[-1] == "tokens out: forecast 1,000, actual -"
    assert len(lines) == 1 + len(JOB["story"]) + len(JOB["forecast"])


@pytest.mark.parametrize(
    ("start", "end", "whole", "drawn"),
    [(0, 14, 14, "█" * 14), (7, 14, 14, " " * 7 + "█" * 7), (14, 14, 14, " " * 13 + "│"), (0, 0, 0, "│")],
)
def test_a_bar_has_its_share_of_the_whole(*, start: float, end: float, whole: float, drawn: str) -> None:
    assert bar(start, end, whole=whole) == drawn
