"""Any engine that speaks OpenAI's HTTP API. Also what `llamacpp` speaks to its own server with.

Invariant: answers pass through as the engine wrote them, but for the usage chunk that the caller had not asked for.
What is changed on the way in is in `request`. A request is sent once: trying again is the queue's business.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp
import orjson

from broker.errors import ConfigError
from broker.tracing import headers_of
from workers.engine import (
    Delta,
    EngineCall,
    EngineLimits,
    EngineLoad,
    EngineRejected,
    EngineUnavailable,
    Final,
)
from workers.engines.detect import detect, doubt
from workers.engines.dialects import AUTO, DIALECTS
from workers.engines.exchange import Exchange, HttpOptions, tracing
from workers.engines.pages import ASK_TIMEOUT_S, Reader
from workers.engines.relay import Relay, whole_answer
from workers.engines.request import Shape
from workers.engines.scrape import first_model, priority_sign, read_limits, read_load

# Servers drop idle connections after 5 s (uvicorn, llama.cpp): ours go first, or a request meets a closing one.
KEEPALIVE_S = 3.0
READ_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Named:
    """What a person says of the server; None: as it says itself. `model`: its name for it; None: the first it lists.

    `kv_tokens`: size of its KV cache; needed where no page tells it (llama.cpp).
    """

    model: str | None = None
    slots: int | None = None
    kv_tokens: int | None = None


class OpenAIEngine:
    """`base_url` without or with its `/v1`. `dialect` "auto": found out at the start."""

    def __init__(
        self,
        base_url: str,
        *,
        dialect: str = AUTO,
        named: Named | None = None,
        options: HttpOptions | None = None,
    ) -> None:
        if dialect != AUTO and dialect not in DIALECTS:
            raise ConfigError(f"dialect {dialect!r} is unknown; it can be {AUTO}, {', '.join(DIALECTS)}")
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._expected = DIALECTS.get(dialect)
        self._dialect = self._expected or DIALECTS["openai"]
        self._named = named or Named()
        self._shape = Shape(self._dialect, self._named.model)
        self._options = options or HttpOptions()
        self._session: aiohttp.ClientSession | None = None
        self._exchanges: dict[str, Exchange] = {}
        self._calls_off: set[asyncio.Task[None]] = set()
        self._away = False
        self.name = self._base_url if self._expected is None else f"{dialect} at {self._base_url}"
        self.pid: int | None = None

    async def start(self) -> None:
        """Also after the server was started anew: what it refused before is tried again."""
        if self._session is None:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._options.api_key:
                headers["Authorization"] = f"Bearer {self._options.api_key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._options.connect_s),
                headers=headers,
                read_bufsize=READ_BUFFER_BYTES,
                trace_configs=[tracing()],
            )
        await self._meet()

    async def generate(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        stream = call.stream or call.endpoint in self._dialect.streams_always
        request_id, ended = self._shape.request_id(call), False
        exchange = await self._open(call, stream=stream, request_id=request_id)
        try:
            if not stream:
                final = await whole_answer(exchange, call)
            else:
                relay = Relay(call)
                while (delta := await relay.next(exchange)) is not None:
                    yield delta
                final = await relay.end(exchange)
            ended = True
            yield final
        finally:
            self._close(call, exchange)
            if request_id and not ended:
                self._call_off(request_id)

    async def abort(self, job_id: str) -> None:
        if (exchange := self._exchanges.get(job_id)) is not None:
            exchange.abort()

    async def load(self) -> EngineLoad:
        reader, metrics, path = self._reader(), self._dialect.metrics, self._dialect.slots_path
        text = await reader.text(metrics.path) if metrics is not None else None
        slots = (await reader.get(path)).json() if path is not None and self._named.kv_tokens else None
        return read_load(self._dialect, text or "", slots=slots, kv_tokens=self._named.kv_tokens)

    async def health(self) -> bool:
        """Who comes back may be another: he is met anew before he counts as healthy."""
        try:
            if self._away:
                await self._meet()
            there = await self._reader().is_well(self._dialect.health_path)
        except EngineUnavailable:
            there = False
        self._away = not there
        return there

    async def limits(self) -> EngineLimits:
        reader = self._reader()
        models = (await reader.models()).json()
        if self._named.model is None:
            self._shape.model = first_model(models)
        pages = await reader.facts(self._dialect, models=models)
        self._shape.priority_sign = priority_sign(self._dialect, pages)
        found = read_limits(self._dialect, pages, model=self._shape.model)
        load = await self._load_or_nothing()
        tokens = self._named.kv_tokens or found.kv_tokens or load.kv_total_tokens
        known = self._named.slots is not None or found.slots_known
        slots = self._named.slots or found.slots
        return EngineLimits(
            slots, found.context_tokens, found.model, tokens, load.kv_page_tokens, slots_known=known
        )

    async def close(self) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.abort()
        session, self._session = self._session, None
        for task in list(self._calls_off):
            task.cancel()
        await asyncio.gather(*self._calls_off, return_exceptions=True)
        if session is not None:
            await session.close()

    async def _meet(self) -> None:
        """Whom the worker talks to. Raises EngineUnavailable."""
        reader = self._reader()
        models = await reader.models()
        if self._expected is None:
            self._dialect = await detect(reader, models)
            self.name = f"{self._dialect.name} at {self._base_url}"
        else:
            doubt(self._expected, models, engine=self.name)
        self._shape = Shape(self._dialect, self._named.model)
        await self.limits()

    async def _open(self, call: EngineCall, *, stream: bool, request_id: str) -> Exchange:
        """Once more without a field of Headway's that the server refused. Raises EngineError.

        What is left out stays so if the request then passes: else the refusal may have quoted words of the caller's.
        """
        left_out: set[str] = set()
        while True:
            exchange = Exchange(self._running(), self._options, dialect=self._dialect, stream=stream)
            self._exchanges[call.job_id] = exchange
            without = frozenset(self._shape.refused)
            try:
                body = self._shape.body_of(call, stream=stream, request_id=request_id)
                await exchange.open(self._base_url + call.endpoint, body, headers=headers_of(call.trace))
            except EngineRejected as error:
                self._close(call, exchange)
                blamed = self._shape.to_blame(call, error, without=without)
                if blamed is None:
                    self._shape.refused -= left_out
                    raise
                self._shape.refused.add(blamed)
                left_out.add(blamed)
            except BaseException as error:
                self._away = self._away or isinstance(error, EngineUnavailable)
                self._close(call, exchange)
                if request_id:
                    self._call_off(request_id)
                raise
            else:
                return exchange

    def _close(self, call: EngineCall, exchange: Exchange) -> None:
        exchange.close()
        if self._exchanges.get(call.job_id) is exchange:
            del self._exchanges[call.job_id]

    def _call_off(self, request_id: str) -> None:
        """Tells the engine, for it may notice late that nobody listens any more; nobody waits for that."""
        if self._session is not None:
            task = asyncio.create_task(self._post_abort(self._session, request_id))
            self._calls_off.add(task)
            task.add_done_callback(self._calls_off.discard)

    async def _post_abort(self, session: aiohttp.ClientSession, request_id: str) -> None:
        url, body = f"{self._base_url}{self._dialect.abort_path}", orjson.dumps({"rid": request_id})
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(ASK_TIMEOUT_S), session.post(url, data=body, allow_redirects=False):
                return

    async def _load_or_nothing(self) -> EngineLoad:
        try:
            return await self.load()
        except EngineUnavailable:
            return EngineLoad()

    def _reader(self) -> Reader:
        return Reader(self._running(), self._base_url, self.name)

    def _running(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineUnavailable(f"{self.name} is not started")
        return self._session
