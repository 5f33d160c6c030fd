"""What the programs log: a line an event on standard error, as text or JSON, with the id of the job that it is about.

Lines are written by a thread of their own: who logs never waits for a disk or a pipe. Prompts and answers are never logged.
"""

import asyncio
import atexit
import contextlib
import copy
import logging
import logging.handlers
import os
import queue
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from broker.job import JOB_ID
from broker.settings import Settings

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MOST_WAITING = 10_000  # lines; more are dropped while standard error takes none


def configure(settings: Settings, program: str, *, out: TextIO | None = None) -> Callable[[], None]:
    """For the whole process, in place of what was. `out`: standard error.

    Returns what writes the rest and ends the thread, which the end of the process does too.
    """
    writer = logging.StreamHandler(out or sys.stderr)
    writer.setFormatter(JsonLines(program) if settings.log_format == "json" else logging.Formatter(TEXT))
    waiting: queue.Queue[Any] = queue.Queue(MOST_WAITING)
    listener = logging.handlers.QueueListener(waiting, writer)
    root = logging.getLogger()
    root.handlers[:] = [Queued(waiting)]
    root.setLevel(settings.log_level.upper())
    listener.start()
    end = contextlib.ExitStack()  # runs what it holds once
    end.callback(listener.stop)
    atexit.register(end.close)
    return end.close


class Queued(logging.handlers.QueueHandler):
    """Reads off a record what will not be there any more when it is written."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        told = copy.copy(record)
        told.job = job_of(record)
        told.msg, told.args = record.getMessage(), None
        if record.exc_info:
            told.exc_text = logging.Formatter().formatException(record.exc_info)
            told.exc_info = None
        return told

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


def job_of(record: logging.LogRecord) -> str:
    """The first job that the message names, else the one that the running task is named after; empty if there is none."""
    for value in record.args if isinstance(record.args, tuple) else ():
        if isinstance(value, str) and JOB_ID.fullmatch(value):
            return value
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return ""
    return task.get_name() if task is not None and JOB_ID.fullmatch(task.get_name()) else ""


class JsonLines(logging.Formatter):
    """One object a line: time, level, program, pid, logger, message, and job and error where there is one."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = {"program": program, "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **self._program,
            "logger": record.name,
            "message": record.getMessage(),
        }
        more = {"job": getattr(record, "job", ""), "error": record.exc_text}
        return orjson.dumps(
            line | {name: value for name, value in more.items() if value}, default=str
        ).decode()
