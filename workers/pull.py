"""The worker's loop: claim as many jobs as there are free slots, the moment a slot frees; drain; hand back.

Work is pulled, never pushed: a worker asks only for what it has room for. One instance serves one engine for one pool.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import RedisError

from broker.consumer import Consumer
from broker.errors import RedisAway
from broker.job import Lease
from workers.appender import Appender
from workers.capacity import Ledger, Plan
from workers.doorbell import Doorbell
from workers.engine import Engine
from workers.execute import Backoff, Outcome, Run
from workers.heartbeat import Heartbeat

log = logging.getLogger("headway.pull")
REDIS_RETRY_S = 0.3
PROBE_S = 1.0
IDLE_S = 5.0
PASSED_S = 1.0  # at most, before a job that was passed over is looked at again


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


class Puller:
    """`run` returns after `drain`, when nothing is running any more."""

    def __init__(
        self, means: Means, *, plan: Plan, drain_s: float, observers: Iterable[Observer] = ()
    ) -> None:
        self._means = means
        self.ledger = Ledger(plan)
        self.claimed = 0
        self.preempted = 0
        self.reachable = True
        self._drain_s = drain_s
        self._observers = tuple(observers)
        self._running: dict[str, tuple[Lease, asyncio.Task[None]]] = {}
        self._room = asyncio.Event()
        self._draining = asyncio.Event()
        self._returning: dict[str, str] = {}  # job id: why it is handed back
        self._bell = Doorbell(means.consumer)
        self._impatient = asyncio.Event()
        self._busy_until = 0.0

    @property
    def state(self) -> str:
        if self._draining.is_set():
            return "draining"
        return "ready" if self.reachable else "unavailable"

    def drain(self) -> None:
        """Stop claiming; finish what runs within `drain_s`, then hand the rest back."""
        self._draining.set()
        self._room.set()
        self._means.heartbeat.beat_soon()

    def hand_back(self) -> None:
        """Do not wait for what runs: hand it back now."""
        self._impatient.set()

    def abort(self, job_id: str, token: int | None = None) -> None:
        """Stops a job that is not ours to run any more; its slot is free as soon as the engine has let go."""
        lease, task = self._running.get(job_id, (None, None))
        if lease is not None and task is not None and token in (None, lease.token):
            task.cancel()

    def lost(self, job_ids: Iterable[str]) -> None:
        """Leases the heartbeat could not keep."""
        for job_id in job_ids:
            log.info("lease on %s is lost", job_id)
            self.abort(job_id)

    async def run(self) -> None:
        """Until drained. Redis being away is waited out: what runs goes on."""
        while not self._draining.is_set():
            try:
                await self._turn()
            except (RedisAway, RedisError, OSError) as error:
                log.warning("cannot claim: %s", error)
                await self._pause(REDIS_RETRY_S)
        await self._bell.close()
        with contextlib.suppress(RedisAway):
            await self._means.consumer.wake_another()  # the last wait may have taken a marker along
        await self._finish_running()

    async def _turn(self) -> None:
        """One claim, and a wait if there was nothing (more) to claim."""
        if not self.reachable:
            await self._probe()
            return
        rest_s = self._busy_until - time.monotonic()
        if rest_s > 0:
            await self._pause(rest_s)
            return
        self._room.clear()
        if not self.ledger.free:
            await self._wait_for_room()
            return
        asked_at = time.monotonic()
        claimed = await self._means.consumer.claim(self.ledger.room())
        self._means.heartbeat.hold(claimed.leases, asked_at)
        for lease in claimed.leases:
            self._start(lease)
        if claimed.more or not self.ledger.free:
            return
        at_most_s = min(IDLE_S, IDLE_S if claimed.next_due_s is None else claimed.next_due_s)
        if claimed.passed:
            await self._bell.wait(
                self._room, self._draining, at_most_s=min(at_most_s, PASSED_S), for_all=False
            )
        else:
            await self._bell.wait(self._draining, at_most_s=at_most_s, for_all=True)

    async def _wait_for_room(self) -> None:
        """Full: until a slot frees, or a P0 job has waited long enough for batch work to be stopped."""
        patience_s = self.ledger.plan.preempt_after_s
        if patience_s is None or self.ledger.victim() is None:
            await self._room.wait()
            return
        rung = await self._bell.wait(self._room, at_most_s=IDLE_S, for_all=False)
        if rung:
            await self._make_room(patience_s)

    async def _make_room(self, patience_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._room.wait()
                return
        waited_s = await self._means.consumer.urgent_s()
        victim = self.ledger.victim()
        if waited_s is None or victim is None or self.ledger.free:
            return
        log.info("%s is stopped for a P0 job that has waited %.2f s", victim, waited_s)
        self.preempted += 1
        self._returning[victim] = "preempt"
        self._running[victim][1].cancel()
        await self._room.wait()

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not through a drain."""
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            pass

    async def _probe(self) -> None:
        """An engine that cannot be reached gets no jobs until its health endpoint answers."""
        if not await self._means.engine.health():
            await self._pause(PROBE_S)
        else:
            log.info("engine %s answers again", self._means.engine.name)
            self.reachable = True
            self._means.heartbeat.beat_soon()

    def _start(self, lease: Lease) -> None:
        self.claimed += 1
        self.ledger.take(lease, now=time.monotonic())
        for observer in self._observers:
            observer.started(lease)
        task = asyncio.create_task(self._work(lease), name=lease.job_id)
        self._running[lease.job_id] = (lease, task)

    async def _work(self, lease: Lease) -> None:
        means, began, outcome = self._means, time.monotonic(), Outcome.LOST
        run = Run(
            lease=lease,
            engine=means.engine,
            consumer=means.consumer,
            appender=means.appender,
            trusted_until=means.heartbeat.trusted_until,
            backoff=means.backoff,
            handing_back=self._returning.get,
            on_first=self.ledger.begin,
        )
        try:
            outcome = await run.execute()
        finally:
            self._end(lease, outcome, run_s=time.monotonic() - began)

    def _end(self, lease: Lease, outcome: Outcome, *, run_s: float) -> None:
        self._means.heartbeat.drop(lease.job_id)
        self._running.pop(lease.job_id, None)
        self._returning.pop(lease.job_id, None)
        self.ledger.give_back(lease.job_id)
        self._room.set()
        if outcome is Outcome.UNREACHABLE and self.reachable:
            log.warning("engine %s cannot be reached", self._means.engine.name)
            self.reachable = False
            self._means.heartbeat.beat_soon()
        if outcome is Outcome.BUSY:
            self._busy_until = time.monotonic() + self._means.backoff.delay_s(1)
        for observer in self._observers:
            observer.ended(lease, outcome, run_s=run_s)

    async def _finish_running(self) -> None:
        tasks = [task for _, task in self._running.values()]
        if not tasks:
            return
        finished = asyncio.create_task(asyncio.wait(tasks))
        impatient = asyncio.create_task(self._impatient.wait())
        either: set[asyncio.Task[Any]] = {finished, impatient}
        await asyncio.wait(either, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        impatient.cancel()
        for job_id, (_, task) in list(self._running.items()):
            self._returning[job_id] = "drain"
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
