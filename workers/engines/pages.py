"""Reads pages of a server with GET: what it says of itself, as opposed to what it is asked to generate."""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from workers.engine import EngineUnavailable
from workers.engines.dialects import MODELS_PATH, Dialect

ASK_TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 8 << 20
NOT_THERE = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Page:
    """`server`: the header of that name."""

    status: int
    server: str
    body: bytes

    @property
    def there(self) -> bool:
        return self.status == 200

    def json(self) -> Any:
        """None for what is not there or is not JSON."""
        try:
            return orjson.loads(self.body) if self.there else None
        except orjson.JSONDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class Reader:
    """`name` is the engine's, for messages."""

    session: aiohttp.ClientSession
    base_url: str
    name: str

    async def get(self, path: str) -> Page:
        """Whatever the status. Raises EngineUnavailable if the server cannot be asked."""
        try:
            async with (
                asyncio.timeout(ASK_TIMEOUT_S),
                self.session.get(self.base_url + path, allow_redirects=False) as response,
            ):
                body = b""
                while len(body) < MAX_PAGE_BYTES and (more := await response.content.readany()):
                    body += more
                return Page(response.status, response.headers.get("Server", ""), body)
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise EngineUnavailable(f"{self.name} does not answer {path}: {type(error).__name__}") from error

    async def text(self, path: str) -> str | None:
        """None if the server has no such page. Raises EngineUnavailable for any other refusal."""
        page = await self.get(path)
        if page.status in NOT_THERE:
            return None
        if not page.there:
            raise EngineUnavailable(f"{self.name} answered {path} with status {page.status}")
        return page.body.decode(errors="replace")

    async def is_well(self, path: str) -> bool:
        """By its health page. A server that is too busy to say is not dead; one that has a page for its health means what it says with
        503 (it loads its model, its engine has died). Raises EngineUnavailable if it does not answer."""
        status = (await self.get(path)).status
        busy = (429, 503) if path == MODELS_PATH else (429,)
        return (
            status == 200 or status in busy or (path == MODELS_PATH and status in NOT_THERE)
        )  # some list no models

    async def models(self) -> Page:
        """The one page that every server should have, so a refusal means that the worker is not welcome."""
        page = await self.get(MODELS_PATH)
        if not page.there and page.status not in NOT_THERE:
            raise EngineUnavailable(f"{self.name} answered {MODELS_PATH} with status {page.status}")
        if page.there and page.json() is None:
            raise EngineUnavailable(f"{self.name} answered {MODELS_PATH} with something other than JSON")
        return page

    async def facts(self, dialect: Dialect, *, models: Any) -> dict[str, Any]:
        """The pages of the dialect's `facts`, by the first of their paths. A page that is refused says nothing."""
        pages: dict[str, Any] = {MODELS_PATH: models}
        for facts in dialect.facts:
            for path in facts.paths if facts.paths[0] not in pages else ():
                pages[facts.paths[0]] = (await self.get(path)).json()
                if pages[facts.paths[0]] is not None:
                    break
        return pages
