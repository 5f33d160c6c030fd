"""Keeps leases alive from a thread of its own, so that a blocked event loop does not look like a dead worker.

Trust window: a lease is trusted until `lease_s` after the last renewal was *sent*. Redis gives it away later than that,
so a worker that stops at the end of its own count never works on a job that somebody else has begun.

A worker of several queues beats in each of them: where it holds leases and at home each time, else every other time, which
is often enough for being known to live there.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from broker.job import Lease, queue_of
from broker.script import Call
from broker.scripts import Beat, renew
from broker.served import Served
from broker.thread_link import ThreadLinks

log = logging.getLogger("headway.heartbeat")
BEATS_PER_LEASE = 3
BEAT_S = (
    5.0  # at least so often, however long a lease is: the reaper forgets workers that are silent for a minute
)
AGAIN_S = 0.3  # while Redis is away: whose record has expired is not known to live until it beats
STALLED_S = 60.0  # an event loop that does not turn for so long is hung, not busy: its leases may lapse

Describe = Callable[[], bytes]
OnLost = Callable[[Iterable[str]], None]
OnWish = Callable[[str], None]


class Heartbeat:
    """`describe` gives the worker's record and runs in the thread; the others are called in the event loop.

    `on_wish`: an operator wants the worker to `pause` or to `drain`, or, empty, nothing any more (steering.py).
    """

    def __init__(self, url: str, *, pool: str | Served, worker_id: str, lease_s: float) -> None:
        """`pool`: the queues, or the name of the only one."""
        self._served = Served([pool]) if isinstance(pool, str) else pool
        self._beats = 0
        self._away = False  # the last beat did not get through everywhere
        self._worker_id = worker_id
        self._lease_s = lease_s
        self.every_s = min(BEAT_S, lease_s / BEATS_PER_LEASE)  # also what a beat may take
        self._links = ThreadLinks(url, timeout_s=self.every_s)
        self._held: dict[str, tuple[int, float]] = {}  # job id: token, trusted until (monotonic s)
        self._wishes: dict[str, str] = {}  # queue: what its operator wants of this worker
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._now = threading.Event()
        self._thread: threading.Thread | None = None
        self._turned = time.monotonic()

    def start(self, describe: Describe, on_lost: OnLost, *, on_wish: OnWish = lambda _: None) -> None:
        """Call in the event loop that runs the jobs. Beats at once."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run,
            args=(loop,),
            kwargs={"describe": describe, "on_lost": on_lost, "on_wish": on_wish},
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

    def called(self, worker_id: str) -> None:
        """Somebody has noted a wish about that worker: it beats now, to learn what."""
        if worker_id == self._worker_id:
            self.beat_soon()

    def stop(self) -> None:
        """Ends the thread. Leases that are still held lapse."""
        self._stop.set()
        self._now.set()
        if self._thread is not None:
            self._thread.join(self.every_s * 2)
        self._links.close()

    def _run(
        self, loop: asyncio.AbstractEventLoop, *, describe: Describe, on_lost: OnLost, on_wish: OnWish
    ) -> None:
        wished = ""
        while not self._stop.is_set():
            lost = self._try(describe)
            try:
                loop.call_soon_threadsafe(self._turn)
                if lost:
                    loop.call_soon_threadsafe(on_lost, lost)
                if self._wish != wished:
                    wished = self._wish
                    loop.call_soon_threadsafe(on_wish, wished)
            except RuntimeError:  # the loop has closed
                return
            self._now.wait(min(AGAIN_S, self.every_s) if self._away else self.every_s)
            self._now.clear()

    def _turn(self) -> None:
        self._turned = time.monotonic()

    def _try(self, describe: Describe) -> list[str]:
        """A beat that fails by a fault of ours is as one that did not get through: its leases are not kept, and another follows."""
        try:
            return self._beat(describe)
        except Exception:  # the thread's outermost guard: a worker without a heartbeat is not known to live
            if not self._away:
                log.exception("a heartbeat failed; it is tried again all the time")
            self._away = True
            with self._lock:
                held = tuple(self._held)
            return self._distrusted(held)

    def _beat(self, describe: Describe) -> list[str]:
        """Renews once; returns the ids of leases that are lost."""
        sent = time.monotonic()
        with self._lock:
            held = {job_id: token for job_id, (token, _) in self._held.items()}
        if held and sent - self._turned > STALLED_S:
            log.error("the event loop has not turned for %.0f s; %d leases may lapse", STALLED_S, len(held))
            return []
        beats, record, lost = self._by_queue(held), describe(), list[str]()
        calls = [self._renewal(queue, record, held=mine) for queue, mine in beats.items()]
        answers = self._links.run_all(calls)
        self._note(next((answer for answer in answers if isinstance(answer, Exception)), None))
        for (queue, mine), answer in zip(beats.items(), answers, strict=True):
            if isinstance(answer, Exception):
                lost += self._distrusted(mine)
            else:
                wish, *ids = (word.decode() for word in answer)
                self._wishes[queue], gone = wish, set(ids)
                self._trust({job_id: mine[job_id] for job_id in mine.keys() - gone}, sent + self._lease_s)
                lost += gone
        return lost

    def _note(self, trouble: Exception | None) -> None:
        if trouble is not None and not self._away:
            log.warning("heartbeat does not reach Redis: %s", trouble)
        elif trouble is None and self._away:
            log.info("heartbeat reaches Redis again")
        self._away = trouble is not None

    def _by_queue(self, held: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Where to beat now, with the leases (job id: token) that are held there."""
        self._beats += 1
        queues = self._served.queues if self._beats % 2 else (self._served.home,)
        found: dict[str, dict[str, int]] = {queue: {} for queue in queues}
        for job_id, token in held.items():
            found.setdefault(queue_of(job_id), {})[job_id] = token
        return found

    def _renewal(self, queue: str, record: bytes, *, held: Mapping[str, int]) -> Call:
        wish = self._wishes.get(queue, "")
        return renew(queue, Beat(self._worker_id, record, tuple(held.items()), self._lease_s, wish))

    @property
    def _wish(self) -> str:
        """Of all queues: a worker that is to leave one of its pools leaves altogether."""
        return next((wish for wish in ("drain", "pause") if wish in self._wishes.values()), "")

    def _trust(self, kept: Mapping[str, int], until: float) -> None:
        with self._lock:
            for job_id, token in kept.items():
                if self._held.get(job_id, (0, 0.0))[0] == token:
                    self._held[job_id] = (token, until)

    def _distrusted(self, job_ids: Iterable[str]) -> list[str]:
        """Leases that would end before the next beat could save them."""
        horizon = time.monotonic() + self.every_s
        with self._lock:
            return [job_id for job_id in job_ids if self._held.get(job_id, (0, horizon))[1] < horizon]
