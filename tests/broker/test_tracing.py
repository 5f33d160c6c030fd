"""W3C trace context as it travels with a job, and when Headway makes spans of its own."""

import sys

import pytest

from broker.errors import ConfigError
from broker.settings import Settings, load_settings
from broker.tracing import carried, headers_of, open_spans

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": PARENT.decode()},
        {"traceparent": PARENT.decode(), "tracestate": "vendor=a:b,other=c d"},
        {},
    ],
)
def test_what_a_request_is_part_of_arrives_as_it_was_sent(headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert headers_of(carried([(b"host", b"x"), *raw])) == headers


@pytest.mark.parametrize(
    "parent",
    [
        PARENT.upper(),
        PARENT[:-3],
        PARENT + b"-00",
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        PARENT + b"\r\nx: y",
        b"",
    ],
)
def test_a_wrong_parent_is_nobodys(parent: bytes) -> None:
    assert carried([(b"traceparent", parent), (b"tracestate", b"vendor=a")]) == ""


@pytest.mark.parametrize("state", [b"", b"vendor=\xff", b"v=" + b"x" * 511, b"v=a\r\nx: y"])
def test_a_state_that_may_not_be_passed_on_is_left_out(state: bytes) -> None:
    assert carried([(b"traceparent", PARENT), (b"tracestate", state)]) == PARENT.decode()


def test_states_of_several_headers_are_one() -> None:
    assert carried([(b"tracestate", b"a=1"), (b"traceparent", PARENT), (b"tracestate", b"b=2")]) == (
        PARENT.decode() + " a=1,b=2"
    )


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, ""),
        ({"HEADWAY_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces"),
        ({"HEADWAY_OTLP_ENDPOINT": "http://c:4318/own"}, "http://c:4318/own"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/base/"}, "http://c:4318/base/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/own"}, "http://c/own"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "HEADWAY_OTLP_ENDPOINT": "http://d"}, "http://d/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)  # fmt: skip
def test_traces_go_where_headways_variable_says_or_else_opentelemetrys(
    monkeypatch: pytest.MonkeyPatch, *, variables: dict[str, str], url: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load_settings().otlp_endpoint == url


def test_an_address_that_takes_no_traces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_OTLP_ENDPOINT", "collector:4317")
    with pytest.raises(ConfigError, match="HEADWAY_OTLP_ENDPOINT"):
        load_settings()


def test_nobody_who_does_not_ask_for_traces_needs_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "broker.spans", raising=False)
    assert open_spans(Settings(), "headway-api", instance="x") is None
    with pytest.raises(ConfigError, match=r"pip install 'headway\[otel\]'"):
        open_spans(Settings(otlp_endpoint="http://127.0.0.1:1"), "headway-api", instance="x")
