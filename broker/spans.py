"""OpenTelemetry's side of tracing.py: where spans are made and sent. Imported only if they are asked for.

What is not said here, OpenTelemetry's own variables say, which its SDK reads: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS and the like.
"""

from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from broker.tracing import PARENT, STATE, headers_of

UNNAMED = "unknown_service"  # as the SDK calls what nobody has named
_w3c = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Spans:
    """Of one process. Not the global provider: who embeds Headway may have one of its own."""

    provider: TracerProvider
    tracer: Tracer

    def current(self) -> str:
        """The span that this task is in, as `tracing.carried`; empty if there is none."""
        return trace_of(get_current_span())

    def close(self) -> None:
        """Sends what is waiting. Blocks, for as long as OTEL_BSP_EXPORT_TIMEOUT says at most."""
        self.provider.shutdown()


def open_spans(endpoint: str, service: str, *, instance: str, exporter: SpanExporter | None = None) -> Spans:
    """`endpoint`: URL that takes OTLP traces over HTTP. `exporter`: in its place."""
    resource = Resource.create({"service.instance.id": instance})
    if str(resource.attributes.get(SERVICE_NAME, UNNAMED)).startswith(UNNAMED):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint)))
    return Spans(provider, provider.get_tracer("headway"))


def context_of(trace: str) -> Context:
    """Of what a job is part of; an empty one if it is part of nothing."""
    return _w3c.extract(headers_of(trace), context=Context())


def trace_of(span: Span) -> str:
    """For what is to be part of the span; as `tracing.carried`."""
    carrier: dict[str, Any] = {}
    _w3c.inject(carrier, context=set_span_in_context(span, Context()))
    return " ".join(carrier[name.decode()] for name in (PARENT, STATE) if name.decode() in carrier)
