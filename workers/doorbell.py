"""Waiting for work, a freed slot, or a drain, whichever comes first, with one blocking command to Redis at a time.

A wait that ends by something else leaves its command standing for the next one, since calling it off costs a connection.
"""

import asyncio

from broker.consumer import Consumer


class Doorbell:
    """Rung through the pool's marker, an urgent job's, or this worker's own."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._bell: asyncio.Task[None] | None = None
        self._for_all = True

    async def wait(self, *events: asyncio.Event, at_most_s: float, for_all: bool) -> bool:
        """True if it rang. `for_all` as in `Consumer.wait`. Raises RedisError, OSError."""
        bell = await self._hang_up(at_most_s, for_all=for_all)
        others = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait({bell, *others}, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in others:
                other.cancel()
        if not bell.done():
            return False
        self._bell = None
        bell.result()
        return True

    async def close(self) -> None:
        """Calls the standing command off."""
        if self._bell is not None:
            self._bell.cancel()
            await asyncio.gather(self._bell, return_exceptions=True)
            self._bell = None

    async def _hang_up(self, at_most_s: float, *, for_all: bool) -> "asyncio.Task[None]":
        if self._bell is not None and (self._for_all or for_all):
            await self.close()
        if self._bell is None:
            self._for_all = for_all
            self._bell = asyncio.create_task(self._consumer.wait(at_most_s, for_all=for_all))
        return self._bell
