"""Waiting for a condition instead of sleeping for a time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

STEP_S = 0.005


async def wait_until(
    condition: Callable[[], Any | Awaitable[Any]], *, timeout_s: float = 10.0, what: str = ""
) -> Any:
    """The first truthy value of `condition`, which may be a coroutine function.

    Raises AssertionError naming `what` and the last value. The limit only ends a test that would hang.
    """
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what or condition} (last: {value!r})")
        await asyncio.sleep(STEP_S)


def wait_until_sync(condition: Callable[[], Any], *, timeout_s: float = 10.0, what: str = "") -> Any:
    """As `wait_until`, for tests without an event loop."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what or condition} (last: {value!r})")
        time.sleep(STEP_S)
    return value
