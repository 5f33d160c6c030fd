"""Prometheus: the queue's state, read from Redis when it is scraped, so that every API process tells the same."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from broker.fleet import PoolView
from broker.job import ServiceClass, Status
from predictor.lessons import Lessons

ENDS = tuple(status for status in Status if status.terminal)
TOKENS = {"prompt": "tokens_in", "output": "tokens_out", "cached": "tokens_cached"}
RETRIES = ("error", "busy", "drain")
BREAKER = "breaker:"  # likewise (docs/staying_up.md)
RECONCILED = "reconciled:"  # a counter each (docs/state_machine.md)


def render(views: Sequence[PoolView], lessons: Mapping[str, Lessons]) -> bytes:
    """The exposition format, with this process's own CPU and memory. `lessons`: by pool."""
    registry = CollectorRegistry()
    registry.register(_Pools(views))
    registry.register(_Forecasts(lessons))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


@dataclass(eq=False, slots=True)
class _Pools(Collector):
    views: Sequence[PoolView]

    def collect(self) -> Iterable[Metric]:
        yield from self._gauges()
        yield from self._counters()

    def _gauges(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "headway_queue_jobs", "Jobs ready to be claimed", labels=["pool", "class"]
        )
        delayed = GaugeMetricFamily(
            "headway_delayed_jobs", "Jobs held back: retries, unfed batch work", labels=["pool"]
        )
        running = GaugeMetricFamily("headway_running_jobs", "Jobs leased to workers", labels=["pool"])
        dead = GaugeMetricFamily("headway_dead_jobs", "Dead letters", labels=["pool"])
        workers = GaugeMetricFamily("headway_workers", "Workers by state", labels=["pool", "state"])
        slots = GaugeMetricFamily("headway_slots", "Slots of ready workers", labels=["pool"])
        busy = GaugeMetricFamily("headway_busy_slots", "Busy slots of ready workers", labels=["pool"])
        for view in self.views:
            for service_class in ServiceClass:
                waiting.add_metric([view.pool, service_class.name], view.waiting[service_class])
            states = [worker.state for worker in view.workers]
            for state in sorted({"ready", *states}):
                workers.add_metric([view.pool, state], states.count(state))
            delayed.add_metric([view.pool], view.delayed)
            running.add_metric([view.pool], view.running)
            dead.add_metric([view.pool], view.dead)
            slots.add_metric([view.pool], view.slots)
            busy.add_metric([view.pool], sum(worker.busy_slots for worker in view.ready_workers))
        yield from (waiting, delayed, running, dead, workers, slots, busy)

    def _counters(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily("headway_jobs_accepted", "Jobs accepted", labels=["pool", "class"])
        ended = CounterMetricFamily("headway_jobs", "Jobs that ended", labels=["pool", "class", "status"])
        tokens = CounterMetricFamily(
            "headway_tokens", "Tokens as engines counted them", labels=["pool", "kind"]
        )
        retried = CounterMetricFamily("headway_retries", "Leases given back", labels=["pool", "reason"])
        deaths = CounterMetricFamily("headway_worker_deaths", "Leases that ran out", labels=["pool"])
        mended = CounterMetricFamily(
            "headway_reconciled", "Broken indexes that the reaper mended", labels=["pool", "what"]
        )
        breaker = CounterMetricFamily(
            "headway_breaker_events", "What workers' breakers did", labels=["pool", "event"]
        )
        rescued = CounterMetricFamily(
            "headway_rescued_jobs", "Jobs handed on as nobody served the pool", labels=["pool"]
        )
        for view in self.views:
            counters = view.counters
            for c in ServiceClass:
                accepted.add_metric([view.pool, c.name], counters.get(f"enqueued:{c:d}", 0))
                for status in ENDS:
                    ended.add_metric([view.pool, c.name, status], counters.get(f"{status}:{c:d}", 0))
            for kind, name in TOKENS.items():
                tokens.add_metric([view.pool, kind], counters.get(name, 0))
            for reason in RETRIES:
                retried.add_metric([view.pool, reason], counters.get(f"retried:{reason}", 0))
            deaths.add_metric([view.pool], counters.get("deaths", 0))
            rescued.add_metric([view.pool], counters.get("rescued", 0))
            for event in ("opened", "probes", "closed"):
                breaker.add_metric([view.pool, event], counters.get(BREAKER + event, 0))
            for name in sorted(name for name in counters if name.startswith(RECONCILED)):
                mended.add_metric([view.pool, name.removeprefix(RECONCILED)], counters[name])
        yield from (accepted, ended, tokens, retried, deaths, mended, breaker, rescued)


@dataclass(eq=False, slots=True)
class _Forecasts(Collector):
    lessons: Mapping[str, Lessons]

    def collect(self) -> Iterable[Metric]:
        """Learned from finished jobs by one process for all; a pool that has finished none has no series."""
        ratio = GaugeMetricFamily(
            "headway_forecast_error_ratio",
            "How far forecasts are off, as a factor: 1 is right, 2 is twice or half (moving geometric mean)",
            labels=["pool", "of"],
        )
        samples = CounterMetricFamily(
            "headway_forecast_outcomes", "Finished jobs that timing was learned from", labels=["pool"]
        )
        for pool, each in self.lessons.items():
            for of, error in (("run_s", each.drift.run), ("output_tokens", each.drift.output)):
                if error is not None:
                    ratio.add_metric([pool, of], round(math.exp(error), 4))
            samples.add_metric([pool], each.timing.samples)
        yield from (ratio, samples)
