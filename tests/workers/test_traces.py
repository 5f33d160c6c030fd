"""Traces as a collector gets them: one from the HTTP request through queue and claim to the engine's answer."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from broker.config import Config, ModelConfig
from broker.settings import Settings
from tests.api.harness import Served, chat, serve
from tests.conditions import wait_until
from workers.engines.openai_http import OpenAIEngine
from workers.main import Worker
from workers.options import parse

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CONFIG = Config(models=(ModelConfig(pool="small"),))
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
}


@dataclass
class Outside:
    """An engine and a collector, on one server. `asked`: the headers of what the engine was asked."""

    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append({name.lower(): value for name, value in request.headers.items()})
        if not (await request.json()).get("stream"):
            return web.json_response(ANSWER)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"index":0,"delta":{"content":"ok"}}]}\n\ndata: [DONE]\n\n')
        return response

    async def collect(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for resource in sent.resource_spans:
            facts = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(facts["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response()


@pytest.fixture
async def outside() -> AsyncIterator[Outside]:
    made, app = Outside(), web.Application()
    app.router.add_get("/v1/models", made.models)
    app.router.add_post("/v1/chat/completions", made.answer)
    app.router.add_post("/v1/traces", made.collect)
    async with TestServer(app) as server:
        made.url = str(server.make_url("/")).rstrip("/")
        yield made


async def run_jobs(settings: Settings, outside: Outside) -> None:
    """A chat, streamed and whole, and a polled job, through a whole API and a whole worker; ends when both have ended."""
    options = parse(["--pool", "small", "--engine", outside.url, "--slots", "2"], CONFIG)
    worker = Worker(settings, options, engine=OpenAIEngine(outside.url, dialect="openai"))
    running = asyncio.create_task(worker.run())
    try:
        async with serve(settings, config=CONFIG) as served:
            await wait_until(lambda: ready(served), what="the worker to be ready")
            traced = {"traceparent": CALLER, "tracestate": "vendor=a"}
            for stream in (True, False):
                body = chat(stream=stream)
                answer = await served.http.post("/v1/chat/completions", json=body, headers=traced)
                assert answer.status_code == 200, answer.text
            job = (await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}, stream=False))).json()
            await served.http.get(f"/v1/jobs/{job['id']}", params={"wait": 10})
    finally:
        worker.on_signal()
        await running


async def ready(served: Served) -> bool:
    return (await served.http.get("/readyz")).status_code == 200


async def test_one_trace_goes_from_the_request_to_the_engines_answer(
    redis_url: str, outside: Outside
) -> None:
    await run_jobs(Settings(redis_url=redis_url, otlp_endpoint=f"{outside.url}/v1/traces"), outside)
    assert outside.services == {"headway-api", "headway-worker"}
    by_trace: dict[str, list[Any]] = defaultdict(list)
    for span in outside.spans:
        by_trace[span.trace_id.hex()].append(span)
    ours = by_trace.pop(CALLER.split("-")[1])
    by_id = {span.span_id: span for span in ours}
    requests = [span for span in ours if span.parent_span_id.hex() == CALLER.split("-")[2]]
    assert len(requests) == 2
    tree = sorted((by_id[s.parent_span_id].span_id.hex(), s.name) for s in ours if s not in requests)
    expected = [(request.span_id.hex(), name) for request in requests for name in ("queued", "run")]
    runs = [span for span in ours if span.name == "run"]
    assert tree == sorted([*expected, *((run.span_id.hex(), "chat small") for run in runs)])
    engines = [span for span in ours if span.name == "chat small"]
    assert [[event.name for event in span.events] for span in engines] == [["first token"], []]
    for asked, span in zip(outside.asked, engines, strict=False):
        assert asked["traceparent"] == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
        assert asked["tracestate"] == "vendor=a"
    facts = {each.key: each.value for each in engines[1].attributes}
    assert facts["gen_ai.usage.input_tokens"].int_value == 7
    assert facts["gen_ai.usage.output_tokens"].int_value == 3
    for run in runs:
        waited = next(
            span for span in ours if span.name == "queued" and span.parent_span_id == run.parent_span_id
        )
        assert waited.start_time_unix_nano <= waited.end_time_unix_nano == run.start_time_unix_nano
    assert {request.name for request in requests} == {"POST /v1/chat/completions"}
    polled = [{span.name for span in spans} for spans in by_trace.values()]
    assert {"POST /v1/jobs", "queued", "run", "chat small"} in polled


async def test_without_a_collector_the_engine_gets_the_callers_own_context(
    redis_url: str, outside: Outside
) -> None:
    await run_jobs(Settings(redis_url=redis_url), outside)
    assert [asked.get("traceparent") for asked in outside.asked] == [CALLER, CALLER, None]
    assert [asked.get("tracestate") for asked in outside.asked] == ["vendor=a", "vendor=a", None]
    assert not outside.spans
