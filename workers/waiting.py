"""Waiting for whichever of several events comes first."""

import asyncio


async def first_of(*events: asyncio.Event, within_s: float | None = None) -> None:
    """Until one of them is set, or `within_s` seconds have passed."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
