"""Prometheus: the queue's state, read from Redis when it is scraped, so that every API process tells the same."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from broker.fleet import PoolView
from broker.job import ServiceClass, Status

ENDS = tuple(status for status in Status if status.terminal)
TOKENS = {"prompt": "tokens_in", "output": "tokens_out", "cached": "tokens_cached"}
RETRIES = ("error", "busy", "drain")


def render(views: Sequence[PoolView]) -> bytes:
    """The exposition format, with this process's own CPU and memory."""
    registry = CollectorRegistry()
    registry.register(_Pools(views))
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
        yield from (accepted, ended, tokens, retried, deaths)
