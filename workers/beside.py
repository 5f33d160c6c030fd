"""The parts of a program that run beside its main one. None of them may be missing unnoticed."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

log = logging.getLogger("headway.worker")


@contextlib.asynccontextmanager
async def beside(
    loops: Iterable[Coroutine[Any, Any, None]], *, on_failure: Callable[[], None]
) -> AsyncIterator[None]:
    """They run while the block does, each until it is cancelled at its end.

    Should one fail, `on_failure` is to have the block end in its own time; then the failure is raised.
    """
    failures = list[BaseException]()

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a part of the worker has failed: it drains, to be started again", exc_info=error)
            failures.append(error)
            on_failure()

    tasks = [asyncio.create_task(loop) for loop in loops]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    finally:
        for task in tasks:
            task.remove_done_callback(ended)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failures:
        raise failures[0]
