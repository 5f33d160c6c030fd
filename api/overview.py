"""What the live page and `headway top` show, as one document: made once a second at most, however many look, and only while
somebody does. docs/observing.md says how to read it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from api import documents
from api.costs import costs
from api.drain import queued_s
from api.errors import translate
from api.services import Services
from broker import fleet, notable
from broker.accounts import Book, LastHour, accounted
from broker.errors import BrokerError
from broker.fleet import PoolView
from broker.histograms import BOUNDS
from broker.job import ServiceClass

Document = dict[str, Any]
EVERY_S = 1.0
SELDOM_S = 5.0  # for what costs more to find, or changes slowly
RECENT = 10  # jobs of a list
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Overviews:
    """One per process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._hour = LastHour(services.pipe)
        self._made: tuple[float, bytes] = (float("-inf"), b"")
        self._seldom: tuple[float, Document] = (float("-inf"), {})
        self._making: asyncio.Task[bytes] | None = None
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Ends all that follow: nobody who only looks holds up the end of the process."""
        self._closed.set()

    async def follow(self) -> AsyncIterator[tuple[str, bytes]]:
        """Every EVERY_S an `overview`, or an `error` in its place, until it is closed."""
        closed = asyncio.create_task(self._closed.wait())
        try:
            while not closed.done():
                looking = asyncio.create_task(self._look())
                await asyncio.wait((looking, closed), return_when=asyncio.FIRST_COMPLETED)
                if not looking.done():  # Redis hangs
                    looking.cancel()
                    return
                yield looking.result()
                await asyncio.wait((closed,), timeout=EVERY_S)
        finally:
            closed.cancel()

    async def _look(self) -> tuple[str, bytes]:
        try:
            return "overview", await self.latest()
        except BrokerError as error:
            return "error", orjson.dumps(translate(error).document())

    async def latest(self) -> bytes:
        """JSON, at most EVERY_S old. Raises BrokerError."""
        now = asyncio.get_running_loop().time()
        made_at, document = self._made
        if now - made_at < 0.9 * EVERY_S:
            return document
        if self._making is None:
            self._making = asyncio.create_task(self._make(now))
            self._making.add_done_callback(self._finished)
        return await asyncio.shield(self._making)

    def _finished(self, task: "asyncio.Task[bytes]") -> None:
        self._making = None
        if not task.cancelled() and task.exception() is None:
            self._made = asyncio.get_running_loop().time(), task.result()

    async def _make(self, now: float) -> bytes:
        cache = self._services.fleet
        views = await cache.views()
        if now - self._seldom[0] > SELDOM_S:
            self._seldom = now, await self._look_seldom()
        queues = {view.pool: cache.queues(view.pool) for view in views}
        hour = await self._hour.read([queue for some in queues.values() for queue in some])
        pools = await asyncio.gather(
            *(self._pool(view, queues[view.pool], book=hour.get(view.pool, Book())) for view in views)
        )
        return orjson.dumps(
            {
                "object": "overview",
                "at": round(time.time(), 3),
                "pools": pools,
                "balance": documents.fleet_balance(views),
                **self._seldom[1],
            }
        )

    async def _look_seldom(self) -> Document:
        pipe = self._services.pipe
        slow, failed = await notable.recent(pipe, await accounted(pipe), most=RECENT)
        return {
            "recent": {"slow": [asdict(job) for job in slow], "failed": [asdict(job) for job in failed]},
            "cost": await costs(self._services),
        }

    async def _pool(self, view: PoolView, queues: Sequence[str], *, book: Book) -> Document:
        oldest = await fleet.oldest_s(self._services.pipe, queues)
        return documents.pool_document(view, self._services.fleet.model_of(view.pool)) | {
            "waiting_s": {c.name: round(queued_s(view, c), 1) for c in ServiceClass},
            "oldest_s": {c.name: oldest[c] for c in ServiceClass},
            "hour": hour_document(book),
        }


def hour_document(book: Book) -> Document:
    """By class: how many jobs were answered in the last hour, and for each of wait, ttft, tpot and e2e the percentiles,
    seconds; only what there is."""
    return {c.name: _class(book, c) for c in ServiceClass if ("wait", c) in book.times}


def _class(book: Book, service_class: ServiceClass) -> Document:
    found: Document = {"jobs": book.time("e2e", [service_class]).count}
    for what in BOUNDS:
        histogram = book.time(what, [service_class])
        if histogram.count:
            found[f"{what}_s"] = {name: _rounded(histogram.quantile(share)) for name, share in SHARES.items()}
    return found


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.3g}")
