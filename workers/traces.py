"""The spans of a worker: how long a job waited, its run, and the engine's part of that with the moment of the first token.

They are part of what the request that brought the job is part of (broker/tracing.py); a job that came without is a trace of
its own. Made from what `sight.py` has seen; only the engine's has to be there before, as the engine is told its id.
"""

import time
from dataclasses import dataclass, replace

from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context

from broker.job import pool_of
from broker.spans import Spans, context_of, trace_of
from workers.engine import CHAT, COMPLETIONS, EMBEDDINGS, EngineCall
from workers.sight import Seen

OPERATIONS = {
    CHAT: "chat",
    COMPLETIONS: "text_completion",
    EMBEDDINGS: "embeddings",
}  # as OpenTelemetry names them
FINE = ("succeeded", "escalated", "handed back")


@dataclass(frozen=True, slots=True)
class _Begun:
    run: Span
    engine: Span | None = None


class Traces:
    """Follows `Sight`."""

    def __init__(self, spans: Spans, *, worker_id: str) -> None:
        self._tracer = spans.tracer
        self._worker_id = worker_id
        self._begun: dict[str, _Begun] = {}

    def before(self, seen: Seen, call: EngineCall) -> EngineCall:
        """The call as the engine is to get it: part of a span that begins now."""
        run = self._run(seen)
        operation, model = OPERATIONS.get(call.endpoint, call.endpoint), str(call.body.get("model", ""))
        engine = self._tracer.start_span(
            f"{operation} {model}".strip(),
            context=set_span_in_context(run),
            kind=SpanKind.CLIENT,
            attributes={"gen_ai.operation.name": operation, "gen_ai.request.model": model},
            start_time=_ns(seen.began),
        )
        self._begun[seen.lease.job_id] = _Begun(run, engine)
        return replace(call, trace=trace_of(engine))

    def saw(self, seen: Seen, outcome: str) -> None:
        begun = self._begun.pop(seen.lease.job_id, None) or _Begun(self._run(seen))
        if begun.engine is not None:
            _end_engine(begun.engine, seen)
        begun.run.set_attribute("headway.outcome", outcome)
        if outcome not in FINE:
            begun.run.set_status(StatusCode.ERROR, outcome)
        begun.run.end()

    def _run(self, seen: Seen) -> Span:
        """Begun at the claim; and how long the job had waited for it. A later attempt has waited and run before."""
        lease, parent, claimed = seen.lease, context_of(seen.lease.trace), _ns(seen.started)
        facts = {
            "headway.job.id": lease.job_id,
            "headway.pool": pool_of(lease.job_id),
            "headway.class": lease.service_class.name,
            "headway.tenant": lease.tenant,
        }
        run = self._tracer.start_span(
            "run",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=facts | {"headway.worker.id": self._worker_id, "headway.attempt": lease.attempt},
            start_time=claimed,
        )
        if lease.attempt == 1:
            among = parent if lease.trace else set_span_in_context(run)
            accepted = claimed - round(lease.waited_s * 1e9)
            waited = self._tracer.start_span("queued", context=among, attributes=facts, start_time=accepted)
            waited.end(claimed)
        return run


def _end_engine(span: Span, seen: Seen) -> None:
    if seen.first is not None:
        span.add_event("first token", timestamp=_ns(seen.first))
    final = seen.final
    if final is not None and final.usage is not None:
        span.set_attribute("gen_ai.usage.input_tokens", final.usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", final.usage.completion_tokens)
    if final is None:
        span.set_status(StatusCode.ERROR, "no whole answer")
    elif final.finish_reason:
        span.set_attribute("gen_ai.response.finish_reasons", [final.finish_reason])
    span.end(_ns(seen.left))


def _ns(moment: float) -> int:
    """Since the epoch, of a moment by `time.monotonic`."""
    return time.time_ns() - round((time.monotonic() - moment) * 1e9)
