"""Keeps leases alive from a thread of its own, so that a blocked event loop does not look like a dead worker.

Trust window: a lease is trusted until `lease_s` after the last renewal was *sent*. Redis gives it away later than that,
so a worker that stops at the end of its own count never works on a job that somebody else has begun.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable

from redis.exceptions import RedisError

from broker.errors import RedisAway
from broker.job import Lease
from broker.keys import PoolKeys
from broker.scripts import Beat, renew
from broker.thread_link import ThreadLink

log = logging.getLogger("headway.heartbeat")
BEATS_PER_LEASE = 3
STALLED_S = 60.0  # an event loop that does not turn for so long is hung, not busy: its leases may lapse

Describe = Callable[[], bytes]
OnLost = Callable[[Iterable[str]], None]


class Heartbeat:
    """`describe` gives the worker's record and runs in the thread; `on_lost` is called in the event loop."""

    def __init__(self, url: str, *, pool: str, worker_id: str, lease_s: float) -> None:
        self._pool = pool
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._timeout_s = lease_s / BEATS_PER_LEASE
        self._link = ThreadLink(url, key=PoolKeys(pool).prefix, timeout_s=self._timeout_s)
        self._held: dict[str, tuple[int, float]] = {}  # job id: token, trusted until (monotonic s)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._now = threading.Event()
        self._thread: threading.Thread | None = None
        self._turned = time.monotonic()

    def start(self, describe: Describe, on_lost: OnLost) -> None:
        """Call in the event loop that runs the jobs. Beats at once."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run,
            args=(loop,),
            kwargs={"describe": describe, "on_lost": on_lost},
            name="heartbeat",
            daemon=True,
        )
        self._thread.start()

    def hold(self, leases: Iterable[Lease], claimed_at: float) -> None:
        """`claimed_at`: time.monotonic() before the claim was sent."""
        with self._lock:
            for lease in leases:
                self._held[lease.job_id] = (lease.token, claimed_at + self._lease_s)

    def drop(self, job_id: str) -> None:
        with self._lock:
            self._held.pop(job_id, None)

    def trusted_until(self, job_id: str) -> float:
        """Monotonic seconds; 0 if the lease is not held any more."""
        with self._lock:
            return self._held.get(job_id, (0, 0.0))[1]

    def beat_soon(self) -> None:
        """The record changed in a way that others should see now."""
        self._now.set()

    def stop(self) -> None:
        """Ends the thread. Leases that are still held lapse."""
        self._stop.set()
        self._now.set()
        if self._thread is not None:
            self._thread.join(self._timeout_s * 2)
        self._link.close()

    def _run(self, loop: asyncio.AbstractEventLoop, *, describe: Describe, on_lost: OnLost) -> None:
        while not self._stop.is_set():
            lost = self._beat(describe)
            try:
                loop.call_soon_threadsafe(self._turn)
                if lost:
                    loop.call_soon_threadsafe(on_lost, lost)
            except RuntimeError:  # the loop has closed
                return
            self._now.wait(self._lease_s / BEATS_PER_LEASE)
            self._now.clear()

    def _turn(self) -> None:
        self._turned = time.monotonic()

    def _beat(self, describe: Describe) -> list[str]:
        """Renews once; returns the ids of leases that are lost."""
        sent = time.monotonic()
        with self._lock:
            held = {job_id: token for job_id, (token, _) in self._held.items()}
        if held and sent - self._turned > STALLED_S:
            log.error("the event loop has not turned for %.0f s; %d leases may lapse", STALLED_S, len(held))
            return []
        try:
            lost = self._send(Beat(self._worker_id, describe(), tuple(held.items()), self._lease_s))
        except (RedisError, OSError, RedisAway) as error:
            log.warning("heartbeat did not reach Redis: %s", error)
            return self._distrusted()
        with self._lock:
            for job_id, token in held.items():
                if job_id not in lost and self._held.get(job_id, (0, 0.0))[0] == token:
                    self._held[job_id] = (token, sent + self._lease_s)
        return lost

    def _distrusted(self) -> list[str]:
        """Leases that would end before the next beat could save them."""
        horizon = time.monotonic() + self._timeout_s
        with self._lock:
            return [job_id for job_id, (_, until) in self._held.items() if until < horizon]

    def _send(self, beat: Beat) -> list[str]:
        return [job_id.decode() for job_id in self._link.run(renew(self._pool, beat))]
