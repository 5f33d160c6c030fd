"""What a metric is, and one scrape's samples of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.histograms import Histogram


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `help` is a sentence for people: in the scrape, in docs/metrics.md. `bounds`: of a histogram that the API fills."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)


def gauge(name: str, help: str, *labels: str) -> Family:  # noqa: A002 - as Prometheus calls it
    return Family(name, Kind.GAUGE, help, labels)


def counter(name: str, help: str, *labels: str) -> Family:  # noqa: A002
    return Family(name, Kind.COUNTER, help, labels)


def histogram(name: str, help: str, *labels: str, bounds: tuple[float, ...] = ()) -> Family:  # noqa: A002
    return Family(name, Kind.HISTOGRAM, help, labels, bounds)


@dataclass(slots=True)
class Samples:
    """Of one scrape. A family of which there is no sample is left out."""

    _found: dict[Family, Metric] = field(default_factory=dict)

    def add(self, family: Family, value: float, *labels: str) -> None:
        """`labels`: values, in the family's order."""
        metric = self._found.get(family)
        if metric is None:
            kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
            metric = self._found[family] = kind(family.name, family.help, labels=family.labels)
        assert isinstance(metric, CounterMetricFamily | GaugeMetricFamily)
        metric.add_metric(labels, value)

    def add_histogram(self, family: Family, found: Histogram, *labels: str) -> None:
        metric = self._found.get(family)
        if metric is None:
            metric = self._found[family] = HistogramMetricFamily(
                family.name, family.help, labels=family.labels
            )
        assert isinstance(metric, HistogramMetricFamily)
        bounds = (str(bound) if math.isfinite(bound) else "+Inf" for bound, _ in found.cumulative)
        buckets = list(zip(bounds, (float(n) for _, n in found.cumulative), strict=True))
        metric.add_metric(labels, buckets, round(found.sum_s, 6))

    def text(self) -> bytes:
        """Prometheus' text format, version 0.0.4."""
        registry = CollectorRegistry()
        registry.register(_Collected(self._found.values()))
        return generate_latest(registry)


@dataclass(frozen=True, slots=True, eq=False)
class _Collected(Collector):
    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics
