"""Any engine that speaks OpenAI's HTTP API. Also what `llamacpp` speaks to its own server with.

Invariant: answers pass through as the engine wrote them. Changed on the way in: the model's name, `stream`, and
`stream_options.include_usage`, so that the token counts are always known; on the way out: the usage chunk that the
caller had not asked for is left out.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import orjson

from broker.errors import ConfigError
from workers.assemble import Assembler
from workers.engine import (
    EMBEDDINGS,
    Delta,
    EngineBroken,
    EngineCall,
    EngineLimits,
    EngineLoad,
    EngineUnavailable,
    Final,
)
from workers.engines.dialects import DIALECTS, MODELS_PATH, Dialect, first_model, read_limits, read_load
from workers.engines.exchange import Exchange, HttpOptions
from workers.engines.faults import event_fault
from workers.engines.sse import StreamParser, read_usage

ASK_TIMEOUT_S = 5.0
# Servers drop idle connections after 5 s (uvicorn, llama.cpp): ours go first, or a request meets a closing one.
KEEPALIVE_S = 3.0
READ_BUFFER_BYTES = 1 << 18


class OpenAIEngine:
    """`base_url` without or with its `/v1`. `model` None: the first that the server lists. `slots` None: it says."""

    def __init__(
        self,
        base_url: str,
        *,
        dialect: str = "openai",
        model: str | None = None,
        slots: int | None = None,
        options: HttpOptions | None = None,
    ) -> None:
        if dialect not in DIALECTS:
            raise ConfigError(f"dialect {dialect!r} is unknown; it can be {', '.join(DIALECTS)}")
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._dialect: Dialect = DIALECTS[dialect]
        self._model = model
        self._served_model = model
        self._slots = slots
        self._options = options or HttpOptions()
        self._session: aiohttp.ClientSession | None = None
        self._exchanges: dict[str, Exchange] = {}
        self.name = f"{dialect} at {self._base_url}"
        self.pid: int | None = None

    async def start(self) -> None:
        if self._session is None:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._options.api_key:
                headers["Authorization"] = f"Bearer {self._options.api_key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._options.connect_s),
                headers=headers,
                read_bufsize=READ_BUFFER_BYTES,
            )
        await self.limits()

    async def generate(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        stream = call.stream or (self._dialect.streams_always and call.endpoint != EMBEDDINGS)
        exchange = Exchange(
            self._open_session(),
            self._options,
            stream=stream,
            blames_itself_for=self._dialect.blames_itself_for,
        )
        self._exchanges[call.job_id] = exchange
        try:
            await exchange.open(self._base_url + call.endpoint, self._body_of(call, stream))
            if not stream:
                yield await _whole_answer(exchange)
                return
            parser = _parser_for(call)
            assembler = None if call.stream else Assembler()
            while (delta := await _next(exchange, parser)) is not None:
                if assembler is None:
                    yield delta
                else:
                    _assemble(assembler, delta)
            await exchange.drain()
            body = b"" if assembler is None else assembler.whole(parser.usage)
            yield Final(body, parser.usage, parser.finish_reason)
        finally:
            exchange.close()
            if self._exchanges.get(call.job_id) is exchange:
                del self._exchanges[call.job_id]

    async def abort(self, job_id: str) -> None:
        if (exchange := self._exchanges.get(job_id)) is not None:
            exchange.abort()

    async def load(self) -> EngineLoad:
        metrics = await self._ask(self._dialect.metrics_path) if self._dialect.metrics_path else None
        slots = await self._ask_json(self._dialect.slots_path) if self._dialect.slots_path else None
        return read_load(self._dialect, (metrics or b"").decode(errors="replace"), slots=slots)

    async def health(self) -> bool:
        try:
            page = await self._ask(self._dialect.health_path)
        except EngineUnavailable:
            return False
        return page is not None or self._dialect.health_path == MODELS_PATH  # some proxies list no models

    async def limits(self) -> EngineLimits:
        pages = {facts.path: await self._ask_json(facts.path) for facts in self._dialect.facts}
        if self._model is None:
            models = pages.get(MODELS_PATH) or await self._ask_json(MODELS_PATH)
            self._served_model = first_model(models)
        found = read_limits(self._dialect, pages, model=self._served_model)
        return EngineLimits(self._slots or found.slots, found.context_tokens, found.model)

    async def close(self) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.abort()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _body_of(self, call: EngineCall, stream: bool) -> bytes:
        body = {key: value for key, value in call.body.items() if key not in self._dialect.drops}
        if self._served_model is not None:
            body["model"] = self._served_model
        if call.endpoint == EMBEDDINGS:
            return orjson.dumps(body)
        options: Any = body.pop("stream_options", None)
        body["stream"] = stream
        if stream:
            body["stream_options"] = (options if isinstance(options, dict) else {}) | {"include_usage": True}
            if self._dialect.reports_progress:
                body["return_progress"] = True
        return orjson.dumps(body)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineUnavailable(f"{self.name} is not started")
        return self._session

    async def _ask(self, path: str) -> bytes | None:
        """None if the server has no such page. Raises EngineUnavailable if it cannot be asked."""
        session = self._open_session()
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S), session.get(self._base_url + path) as response:
                if response.status in (404, 405, 501):
                    return None
                if response.status != 200:
                    raise EngineUnavailable(f"{self.name} answered {path} with status {response.status}")
                return await response.read()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise EngineUnavailable(f"{self.name} does not answer {path}: {type(error).__name__}") from error

    async def _ask_json(self, path: str) -> Any:
        page = await self._ask(path)
        try:
            return orjson.loads(page) if page is not None else None
        except orjson.JSONDecodeError as error:
            raise EngineUnavailable(f"{self.name} answered {path} with something other than JSON") from error


def _parser_for(call: EngineCall) -> StreamParser:
    options = call.body.get("stream_options")
    return StreamParser(
        usage_wanted=call.stream and isinstance(options, dict) and options.get("include_usage") is True,
        progress_wanted=call.stream and call.body.get("return_progress") is True,
    )


async def _next(exchange: Exchange, parser: StreamParser) -> Delta | None:
    """None at the end. Raises what the engine reported, after all that came before it."""
    while parser.failure is None and not parser.done and (chunk := await exchange.read()):
        if (delta := parser.feed(chunk)) is not None:
            return delta
    if parser.failure is not None:
        raise parser.failure
    return parser.close()


def _assemble(assembler: Assembler, delta: Delta) -> None:
    try:
        assembler.feed(delta.data)
    except orjson.JSONDecodeError as error:
        raise EngineBroken("the engine sent a stream event that is not JSON") from error


async def _whole_answer(exchange: Exchange) -> Final:
    parts = []
    while chunk := await exchange.read():
        parts.append(chunk)
    body = b"".join(parts)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EngineBroken("the engine's answer is not JSON") from error
    if not isinstance(answer, dict):
        raise EngineBroken("the engine's answer is not a JSON object")
    if (fault := event_fault(answer, body)) is not None:
        raise fault
    usage = answer.get("usage")
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("finish_reason") if isinstance(first, dict) else None
    return Final(
        body=body,
        usage=read_usage(usage) if isinstance(usage, dict) else None,
        finish_reason=reason if isinstance(reason, str) else None,
    )
