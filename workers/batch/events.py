"""Shows an engine worker in Flower: as a node, with its batch and background jobs as tasks.

An observer of `workers.pull.Puller`. It must never hold up the worker: events go through a bounded queue to a thread
of its own and are dropped when the queue is full, as happens while Celery's broker is away. Prompts never get here.
"""

import contextlib
import logging
import os
import queue
import threading
import time
from typing import Any

from celery import Celery
from celery.events import EventDispatcher
from kombu.exceptions import OperationalError

from broker.celery_options import celery_options
from broker.job import Lease, ServiceClass
from broker.settings import Settings

log = logging.getLogger("headway.events")
BEAT_S = 5.0
MAX_QUEUED = 1000
MOST_A_SECOND = 50  # jobs of one worker that become tasks, with three events each
MAX_RETRY_S = 30.0
TASK_NAME = "headway.job"
ENDS = {
    "succeeded": "task-succeeded",
    "failed": "task-failed",
    "lost": "task-revoked",
}  # anything else: tried again

Event = tuple[str, dict[str, Any]]


class CeleryEvents:
    """`dropped` counts events that found no room. All methods return at once."""

    def __init__(self, settings: Settings, *, pool: str, worker_id: str) -> None:
        self._hostname = f"engine@{pool}-{worker_id}"
        self._app = Celery("headway-events", set_as_current=False)
        self._app.conf.update(celery_options(settings.celery_url))
        transport: dict[str, Any] = dict(self._app.conf.broker_transport_options or {})
        if transport:
            transport |= {"socket_timeout": 2.0, "max_connections": 2}
            self._app.conf.broker_transport_options = transport
        self._events: queue.Queue[Event] = queue.Queue(MAX_QUEUED)
        self._stop = threading.Event()
        self._active = 0
        self._processed = 0
        self._shown: set[str] = set()  # jobs that run and are tasks there
        self._second = self._begun = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="celery-events", daemon=True)
        self._thread.start()

    def started(self, lease: Lease) -> None:
        self._active += 1
        if lease.service_class >= ServiceClass.P2 and self._has_room():
            self._shown.add(lease.job_id)
            names = {"name": TASK_NAME, "args": repr((lease.job_id,)), "kwargs": "{}"}
            self._send("task-received", uuid=lease.job_id, retries=lease.attempt - 1, **names)
            self._send("task-started", uuid=lease.job_id)

    def ended(self, lease: Lease, outcome: str, *, run_s: float) -> None:
        self._active -= 1
        self._processed += 1
        if lease.job_id not in self._shown:
            return
        self._shown.remove(lease.job_id)
        kind = ENDS.get(outcome, "task-retried")
        more: dict[str, Any] = {"exception": outcome, "traceback": ""}
        if kind == "task-succeeded":
            more = {"result": f"{lease.endpoint} in {run_s:.2f} s", "runtime": run_s}
        elif kind == "task-revoked":
            more = {"terminated": True, "signum": None, "expired": False}
        self._send(kind, uuid=lease.job_id, **more)

    def _has_room(self) -> bool:
        """A job more is shown this second; others only count."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._begun = second, 0
        self._begun += 1
        return self._begun <= MOST_A_SECOND

    def close(self) -> None:
        """Takes the node off Flower's list if the broker can be told within a moment."""
        self._stop.set()
        with contextlib.suppress(queue.Full):
            self._events.put_nowait(("", {}))  # wakes the thread
        self._thread.join(timeout=3.0)

    def _send(self, kind: str, **fields: Any) -> None:
        try:
            self._events.put_nowait((kind, fields | {"timestamp": time.time()}))
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        """Connects, and again after each failure, until closed."""
        delay_s = 1.0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._serve()
            except Exception as error:  # noqa: BLE001 - the thread's outermost guard: what is shown must not stop what runs
                if time.monotonic() - started > MAX_RETRY_S:
                    delay_s = 1.0
                log.debug("events: %r; connecting again in %.0f s", error, delay_s)
                self._stop.wait(delay_s)
                delay_s = min(delay_s * 2, MAX_RETRY_S)
        with contextlib.suppress(OperationalError, OSError):
            self._app.close()

    def _serve(self) -> None:
        with (
            self._app.connection_for_write() as connection,
            self._app.events.Dispatcher(
                connection, hostname=self._hostname, buffer_while_offline=False
            ) as dispatcher,
        ):
            dispatcher.send("worker-online", **self._node())
            self._pump(dispatcher)
            dispatcher.send("worker-offline", **self._node())

    def _pump(self, dispatcher: EventDispatcher) -> None:
        next_beat = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= next_beat:
                dispatcher.send("worker-heartbeat", **self._node())
                next_beat = now + BEAT_S
            with contextlib.suppress(queue.Empty):
                kind, fields = self._events.get(timeout=max(0.01, next_beat - now))
                if kind:
                    dispatcher.send(kind, **fields)

    def _node(self) -> dict[str, Any]:
        loads = {
            "active": self._active,
            "processed": self._processed,
            "loadavg": [round(load, 2) for load in os.getloadavg()],
        }
        return {
            **loads,
            "freq": BEAT_S,
            "sw_ident": "headway-engine",
            "sw_ver": "1",
            "sw_sys": os.uname().sysname,
        }
