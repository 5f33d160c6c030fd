"""What a puller works with, and who watches it."""

from dataclasses import dataclass
from typing import Protocol

from broker.consumer import Consumer
from broker.heirs import Heirs
from broker.job import Lease
from workers.appender import Appender
from workers.engine import Engine
from workers.execute import Backoff
from workers.heartbeat import Heartbeat


class Observer(Protocol):
    """Somebody who wants to know what runs; must not block. Flower's events are one (workers/batch/events.py)."""

    def started(self, lease: Lease) -> None: ...

    def ended(self, lease: Lease, outcome: str, *, run_s: float) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Means:
    """What a puller works with."""

    engine: Engine
    consumer: Consumer
    appender: Appender
    heartbeat: Heartbeat
    backoff: Backoff
    heirs: Heirs | None = None  # of routed jobs; None: none is handed on
