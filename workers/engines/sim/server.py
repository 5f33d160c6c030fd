"""The simulated engine over HTTP: OpenAI's API with vLLM's pages. One process, one replica.

A client that leaves ends its handler, and with it the request's place and blocks in the replica.
"""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from workers.engines.sim.answering import Answering, Call
from workers.engines.sim.asks import Ask, Model, Refused, read
from workers.engines.sim.failures import Failures, Fault
from workers.engines.sim.metrics import Metrics
from workers.engines.sim.realtime import Runner
from workers.engines.sim.sequence import Request
from workers.engines.sim.wire import Header

MAX_BODY_BYTES = 64 << 20
CRASH_CODE = 70
BUSY_RETRY_S = "1"
STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
METRICS_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class Server:
    """`leave`: how the process ends in a crash. `request_log`: gets a line of JSON for each request that is begun:
    `id` of the answer to be, `user` as the request says.
    """

    def __init__(
        self,
        runner: Runner,
        model: Model,
        *,
        failures: Failures | None = None,
        leave: Callable[[int], object] = os._exit,
        request_log: Path | None = None,
    ) -> None:
        self._runner = runner
        self._log = request_log
        self._model = model
        self._failures = failures or Failures()
        self._leave = leave
        self._number = 0
        self._metrics = Metrics(runner, model.name)
        runner.watch(self._metrics.step)

    def app(self) -> web.Application:
        """It runs the replica as long as it is up. Serve it with `handler_cancellation`."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._run)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._page)
        return app

    async def _run(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._runner.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers=METRICS_HEADERS)

    async def _models(self, _: web.Request) -> web.Response:
        name, length = self._model.name, self._model.limits.max_model_len
        card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        card |= {"root": name, "parent": None, "max_model_len": length, "permission": []}
        return _json({"object": "list", "data": [card]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=False)

    async def _receive(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = orjson.loads(await request.read())
            ask = read(body, self._model, chat=chat)
        except orjson.JSONDecodeError as error:
            return _json(Refused(f"the body is not JSON: {error}").document(), status=400)
        except Refused as error:
            return _json(error.document(), status=error.status)
        self._number += 1
        fault = self._failures.of(self._number)
        if fault is Fault.ERROR:
            return _failure(500, "the engine failed on purpose")
        if fault is Fault.BUSY:
            return _failure(503, "the engine is overloaded on purpose")
        try:
            name = f"{'chatcmpl' if ask.chat else 'cmpl'}-{uuid.uuid4().hex}"
            self._note(id=name, user=body.get("user"))
            return await self._answer(request, ask, name=name, fault=fault)
        except asyncio.CancelledError:
            self._metrics.ended("abort")
            raise

    async def _answer(self, request: web.Request, ask: Ask, *, name: str, fault: Fault) -> web.StreamResponse:
        header = Header(name, int(time.time()), self._model.name)
        call = Call(ask, header, fault, self._failures.wrong_usage, self._strike)
        requests = [
            Request(f"{name}-{n}", prompt, answers, ask.priority)
            for n, (prompt, answers) in enumerate(zip(ask.prompts, ask.answers, strict=True))
        ]
        with self._runner.open(requests) as stream:
            answering = Answering(call, stream, metrics=self._metrics)
            if not ask.stream:
                return web.Response(body=await answering.whole(), content_type="application/json")
            response = web.StreamResponse(headers=STREAM_HEADERS)
            await response.prepare(request)
            async for events in answering.events():
                await response.write(events)
            await response.write_eof()
            return response

    def _note(self, **line: Any) -> None:
        """On disk before the first token, for the engine may be killed."""
        if self._log is not None:
            with self._log.open("ab") as file:
                file.write(orjson.dumps(line) + b"\n")

    def _strike(self, fault: Fault) -> None:
        if fault is Fault.FREEZE:
            self._runner.frozen = True
        else:
            self._leave(CRASH_CODE)


def _json(document: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")


def _failure(status: int, message: str) -> web.Response:
    body = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": status}}
    response = _json(body, status=status)
    if status == 503:
        response.headers["Retry-After"] = BUSY_RETRY_S
    return response
