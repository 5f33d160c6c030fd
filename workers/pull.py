"""The worker's loop: claim as many jobs as there are free slots, the moment a slot frees; drain; hand back.

Work is pulled, never pushed: a worker asks only for what it has room for. One instance serves one engine for one pool.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from typing import Any

from redis.exceptions import RedisError

from broker.errors import RedisAway
from broker.job import Lease
from workers.capacity import Grown, Ledger, Plan
from workers.doorbell import Doorbell
from workers.execute import Outcome, Run
from workers.giving_way import PASSED_S, GivingWay
from workers.health_watch import HealthWatch
from workers.means import Means, Observer
from workers.waiting import first_of

log = logging.getLogger("headway.pull")
REDIS_RETRY_S = 0.3
IDLE_S = 5.0
MAX_SIT_OUT_S = 1.0  # also to see what other queues have
MAX_REST_S = 30.0  # of a worker whose engine is busy; the job itself waits as long as the engine asked


class Puller:
    """`run` returns after `drain`, when nothing is running any more."""

    def __init__(
        self, means: Means, *, plan: Plan, drain_s: float, observers: Iterable[Observer] = ()
    ) -> None:
        self._means = means
        self.ledger = Ledger(plan)
        self.claimed = 0
        self.preempted = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.reachable = True
        self.health = HealthWatch(means.engine, on_gone=self._give_up_engine)
        self._drain_s = drain_s
        self._observers = tuple(observers)
        self._running: dict[str, tuple[Lease, asyncio.Task[None]]] = {}
        self._room = asyncio.Event()
        self._draining = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self.dismissed = False
        self._returning: dict[str, str] = {}  # job id: why it is handed back
        self._bell = Doorbell(means.consumer)
        self._way = GivingWay(means.consumer, self.ledger, self._preempt)
        self._impatient = asyncio.Event()
        self._busy_until = 0.0

    @property
    def state(self) -> str:
        if self._draining.is_set():
            return "draining"
        if not self._resumed.is_set():
            return "paused"
        return "ready" if self.reachable else "unavailable"

    def drain(self) -> None:
        """Stop claiming; finish what runs within `drain_s`, then hand the rest back."""
        self._draining.set()
        self._room.set()
        self._means.heartbeat.beat_soon()

    def heed(self, wish: str) -> None:
        """What an operator wants: `pause`, `drain`, or, empty, neither. Who is drained does not come back."""
        if wish == "drain":
            log.info("drained by an operator")
            self.dismissed = True
            self.drain()
        elif wish == "pause":
            self._resumed.clear()
        else:
            self._resumed.set()
        self._means.heartbeat.beat_soon()

    def hand_back(self) -> None:
        """Do not wait for what runs: hand it back now."""
        self._impatient.set()

    def abort(self, job_id: str, token: int | None = None) -> None:
        """Stops a job that is not ours to run any more; its slot is free as soon as the engine has let go."""
        lease, _ = self._running.get(job_id, (None, None))
        if lease is not None and token in (None, lease.token):
            self._stop(job_id)

    def _stop(self, job_id: str) -> None:
        """Not before it has begun: a task that is cancelled until then gives nothing back."""
        asyncio.get_running_loop().call_soon(self._running[job_id][1].cancel)

    def lost(self, job_ids: Iterable[str]) -> None:
        """Leases the heartbeat could not keep."""
        for job_id in job_ids:
            log.info("lease on %s is lost", job_id)
            self.abort(job_id)

    async def run(self) -> None:
        """Until drained. Redis being away is waited out: what runs goes on."""
        away = False
        while not self._draining.is_set():
            try:
                await self._turn()
            except (RedisAway, RedisError, OSError) as error:
                log.log(
                    logging.DEBUG if away else logging.WARNING, "cannot claim until Redis is back: %s", error
                )
                away = True
                await self._pause(REDIS_RETRY_S)
            else:
                if away:
                    log.info("Redis is back")
                away = False
        await self._bell.close()
        with contextlib.suppress(RedisAway):
            await self._means.consumer.withdraw()
            await self._means.consumer.wake_another()  # the last wait may have taken a marker along
        await self._finish_running()

    async def _turn(self) -> None:
        """One claim, and a wait if there was nothing (more) to claim."""
        if not self._resumed.is_set():
            await self._stand_by()
            return
        if not self.reachable:
            await self._probe()
            return
        rest_s = self._busy_until - time.monotonic()
        if rest_s > 0:
            await self._means.consumer.withdraw()
            await self._pause(rest_s)
            return
        self._room.clear()
        if not self.ledger.free:
            await self._wait_for_room()
            return
        asked_at = time.monotonic()
        claimed = await self._means.consumer.claim(self.ledger.room(now=asked_at))
        self._means.heartbeat.hold(claimed.leases, asked_at)
        for lease in claimed.leases:
            self._start(lease)
        if claimed.barred and not claimed.leases:
            await self._sit_out(claimed.next_due_s)
            return
        if claimed.more or not self.ledger.free:
            return
        now = time.monotonic()
        due = (claimed.next_due_s, self.ledger.next_room_s(now=now) if claimed.passed else None)
        at_most_s = min((s for s in due if s is not None), default=IDLE_S)
        if claimed.passed:
            again_s = PASSED_S if self.ledger.cache is None else await self._way.spare_tokens(asked_at)
            await self._bell.wait(
                self._room, self._draining, at_most_s=min(at_most_s, again_s), for_all=False
            )
        else:
            await self._bell.wait(self._draining, at_most_s=at_most_s, for_all=True)

    async def _wait_for_room(self) -> None:
        """Full: until a slot frees, or a P0 job has waited long enough for batch work to be stopped."""
        if self.ledger.patience_s(now=time.monotonic()) is None:
            await self._room.wait()
            return
        rung = await self._bell.wait(self._room, at_most_s=IDLE_S, for_all=False)
        if rung:
            await self._way.make_room(self._room)

    def _preempt(self, victim: str) -> None:
        """It goes back to the queue, and its room is free as soon as the engine has let go."""
        self.preempted += 1
        self.ledger.stop(victim)
        self._returning[victim] = "preempt"
        self._stop(victim)

    def _grown(self, job_id: str, tokens: int) -> None:
        self.health.heard()
        now = time.monotonic()
        grown = self.ledger.grow(job_id, tokens, now=now)
        if grown is Grown.BEGUN and self.ledger.plan.prefill_tokens is not None:
            self._room.set()
        if grown is not None and (victim := self.ledger.relief(now=now)) is not None:
            log.info("%s is stopped, as the engine's KV cache is nearly full", victim)
            self._preempt(victim)

    async def _stand_by(self) -> None:
        """Until resumed or drained. What runs goes on."""
        await self._means.consumer.withdraw()
        await self._means.consumer.wake_another()
        await first_of(self._resumed, self._draining)

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not through a drain."""
        await first_of(self._draining, within_s=seconds)

    async def _sit_out(self, seconds: float | None) -> None:
        """The breaker is open: until it may ask again, or what was its probe has ended. It takes no marker from the others."""
        await first_of(self._room, self._draining, within_s=min(MAX_SIT_OUT_S, seconds or 0.0))

    async def _probe(self) -> None:
        """An engine that cannot be reached gets no jobs until it is well again."""
        await self._means.consumer.withdraw()
        if (again_s := await self.health.recovered()) > 0:
            await self._pause(again_s)
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
            on_tokens=self._grown,
            heirs=means.heirs,
        )
        try:
            outcome = await run.execute()
        finally:
            self._note(run, outcome)
            self._end(lease, outcome, run_s=time.monotonic() - began)

    def _note(self, run: Run, outcome: Outcome) -> None:
        now = time.monotonic()
        if outcome is Outcome.SUCCEEDED:
            self.ledger.learn(run.lease.job_id, run.usage, now=now)
        if outcome is Outcome.BUSY:
            self.ledger.concurrency.busy(now=now)
        if run.usage is not None:
            self.prompt_tokens += run.usage.prompt_tokens
            self.cached_tokens += run.usage.cached_tokens
        if run.busy_s:
            self._busy_until = max(self._busy_until, now + min(run.busy_s, MAX_REST_S))

    def _end(self, lease: Lease, outcome: Outcome, *, run_s: float) -> None:
        self._means.heartbeat.drop(lease.job_id)
        self._running.pop(lease.job_id, None)
        self._returning.pop(lease.job_id, None)
        self.ledger.give_back(lease.job_id)
        self._room.set()
        if outcome is Outcome.UNREACHABLE:
            self._unreachable()
        for observer in self._observers:
            observer.ended(lease, outcome, run_s=run_s)

    def _unreachable(self) -> None:
        if self.reachable:
            log.warning("engine %s cannot be reached", self._means.engine.name)
            self.reachable = False
            self._room.set()
            self._means.heartbeat.beat_soon()

    def _give_up_engine(self) -> None:
        """What may be begun again goes to others now; what a connection reads already may still come to its end."""
        self._unreachable()
        for job_id in self.ledger.restartable:
            self._returning.setdefault(job_id, "drain")
            self.ledger.stop(job_id)
            self._stop(job_id)

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
        for job_id in self._running:
            self._returning[job_id] = "drain"
            self._stop(job_id)
        await asyncio.gather(*tasks, return_exceptions=True)
