"""Log lines: whose job they are about, as text and as JSON, and that nobody waits for them."""

import asyncio
import io
import logging
import queue
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from broker.job import new_job_id
from broker.logs import Queued, configure
from broker.settings import Settings

log = logging.getLogger("headway.test")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Logged:
    """What a program has written until it is read."""

    def __init__(self, **settings: Any) -> None:
        self._out = io.StringIO()
        self._end = configure(Settings(**settings), "api", out=self._out)

    def lines(self) -> list[str]:
        self._end()
        return self._out.getvalue().splitlines()

    def documents(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.lines()]


def test_json_lines_say_when_who_and_which_job() -> None:
    logged, job_id = Logged(log_format="json"), new_job_id("small")
    log.warning("%s was not cancelled: %s", job_id, "Redis\nis away")
    log.debug("below the level")
    [line] = logged.documents()
    assert line.pop("time").endswith("Z")
    assert line.pop("pid") > 0
    assert line == {
        "level": "warning",
        "program": "api",
        "logger": "headway.test",
        "message": f"{job_id} was not cancelled: Redis\nis away",
        "job": job_id,
    }


async def test_a_line_of_a_jobs_own_task_has_its_id() -> None:
    logged, job_id = Logged(log_format="json"), new_job_id("small")

    async def run() -> None:
        log.warning("the engine is slow")

    await asyncio.create_task(run(), name=job_id)
    log.warning("nobody's")
    assert [line.get("job") for line in logged.documents()] == [job_id, None]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_an_error_is_told_with_where_it_came_from(log_format: str) -> None:
    logged = Logged(log_format=log_format)
    try:
        int("broken")
    except ValueError:
        log.exception("failed")
    lines = logged.lines()
    assert "ValueError: invalid literal" in (
        orjson.loads(lines[0])["error"] if log_format == "json" else lines[-1]
    )
    assert len(lines) == 1 or log_format == "text"


def test_text_is_a_plain_line() -> None:
    logged = Logged()
    log.warning("two %s", "words")
    [line] = logged.lines()
    assert line.endswith(" WARNING headway.test: two words")


def test_who_logs_does_not_wait_for_who_writes() -> None:
    waiting: queue.Queue[Any] = queue.Queue(1)
    handler = Queued(waiting)
    for number in range(3):
        handler.handle(logging.LogRecord("x", logging.INFO, "x.py", 1, f"line {number}", None, None))
    assert waiting.get_nowait().msg == "line 0"
    assert waiting.empty()
