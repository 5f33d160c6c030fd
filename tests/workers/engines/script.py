"""What a server does with the POSTs it gets. Stands in for an engine on a bad day, which cannot be had on demand."""

import asyncio
from typing import Any

from aiohttp import web

from tests.conditions import wait_until


class Script:
    """`answer` is a handler. It remembers what it was asked. `hang`: until the client leaves; `cut`: hangs up on it."""

    def __init__(self, *parts: bytes, status: int = 200, hang: bool = False, cut: bool = False) -> None:
        self.parts = parts
        self.status = status
        self.hang = hang
        self.cut = cut
        self.headers: dict[str, str] = {}
        self.bodies: list[dict[str, Any]] = []
        self.sent = asyncio.Event()
        self.left = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        if self.hang and not self.parts:
            await self._wait_for_the_client_to_leave(request)
        response = web.StreamResponse(status=self.status, headers=self.headers)
        await response.prepare(request)
        for part in self.parts:
            await response.write(part)
        self.sent.set()
        if self.hang:
            await self._wait_for_the_client_to_leave(request)
        if self.cut and request.transport is not None:
            request.transport.close()
        return response

    async def _wait_for_the_client_to_leave(self, request: web.Request) -> None:
        self.sent.set()
        try:
            await wait_until(lambda: request.transport is None or request.transport.is_closing())
        finally:  # the server cancels its handler as the connection ends
            self.left.set()
