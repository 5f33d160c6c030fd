"""Headway in front of simulated engines, in virtual time: its own claim scripts and its workers' own ledger. Used by `engines.py`.

A worker claims as the live one does: when a job of its own ends, when Redis wakes it, and when a claim told it to come back.
"""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import redis
from own_redis import own_redis
from virtual_clock import VirtualClock

from broker import scripts
from broker.consumer import lease_of
from broker.job import Forecast, Lease, ServiceClass, Submission, new_job_id
from broker.keys import PoolKeys
from broker.policy import Asking, Limits, Order, Passing
from broker.script import Call
from broker.scripts import Ending, Return
from workers.capacity import Grown, Ledger, Plan
from workers.engine import EngineLoad, Usage
from workers.engines.sim.replica import Replica, StepResult
from workers.engines.sim.sequence import Request
from workers.engines.sim.virtual import Agenda, Station

POOL = "virtual"
KEYS = PoolKeys(POOL)
DONE = Ending(succeeded=True, data=b"")
LEASE_S = 1e6  # nobody dies here, so nobody beats
SEED = 1
MAY_CLAIM_AGAIN = 1
LOOK_S = 1.0  # as HEADWAY_ENGINE_LOAD_S has it


@dataclass(frozen=True, slots=True)
class Work:
    """One job and what it will do. `kv_tokens`: what the queue is told that it needs; `prefix`: its hash chain."""

    at_s: float
    request: Request
    run_s: float
    kv_tokens: int = 0
    prefix: str = ""
    service_class: ServiceClass = ServiceClass.P0


@dataclass(slots=True)
class Gauge:
    """A quantity over time, so that its mean is known."""

    area: float = 0.0
    value: float = 0.0
    since_s: float = 0.0

    def until(self, now_s: float) -> float:
        """Its integral over time."""
        return self.area + self.value * (now_s - self.since_s)

    def set(self, value: float, *, now_s: float) -> None:
        self.area = self.until(now_s)
        self.value, self.since_s = value, now_s


@dataclass(slots=True)
class Member:
    """A worker and its engine. `busy`: slots in use."""

    name: str
    ledger: Ledger
    station: Station
    leases: dict[str, Lease] = field(default_factory=dict)
    busy: Gauge = field(default_factory=Gauge)


@dataclass(frozen=True, slots=True)
class Shape:
    """`make`: an engine. `whole_batches`: a worker claims only when it has nothing left to do."""

    workers: int
    plan: Plan
    make: Callable[[], Replica]
    passing: Passing = field(default_factory=Passing)
    whole_batches: bool = False


class EngineFleet:
    """`watch` is called after every step of an engine."""

    def __init__(self, client: "redis.Redis", shape: Shape) -> None:
        self.agenda = Agenda()
        self.watch: Callable[[Member], None] = lambda _: None
        self.members: dict[str, Member] = {}
        self.last_claim_s = 0.0
        self.generated = 0
        self.generated_at_last_claim = 0
        self._busy_area = 0.0
        self.handed_back = 0
        self.claimed: set[str] = set()
        self.first_s: dict[str, float] = {}  # by request: when its first token came
        self._shape = shape
        self._client = client
        self._clock = VirtualClock(client=client)
        self._rng = random.Random(SEED)
        self._works: dict[str, Work] = {}
        self._left = self._to_come = 0
        for n in range(shape.workers):
            self._join(f"w{n}")

    def play(self, works: list[Work], *, until_s: float = math.inf) -> None:
        """Until all have ended, or the time is over."""
        self._left = self._to_come = len(works)
        for member in self.members.values():
            self._look(member)
        for work in works:
            self.agenda.at(work.at_s, lambda work=work: self._arrive(work))  # type: ignore[misc]
        self.agenda.run(until_s=until_s)

    def busy_share(self) -> float:
        """Of the slots, from the start to the last claim: while there was work for all."""
        return self._busy_area / self.last_claim_s / self._shape.plan.slots / self._shape.workers

    @property
    def waiting(self) -> int:
        """Jobs that have come and run nowhere."""
        return self._left - self._to_come - sum(len(member.leases) for member in self.members.values())

    def totals(self, name: str) -> int:
        """A counter of the engines, summed."""
        return sum(int(getattr(m.station.replica.totals, name)) for m in self.members.values())

    def _join(self, name: str) -> None:
        def stepped(result: StepResult) -> None:
            self._stepped(self.members[name], result)

        station = Station(self.agenda, self._shape.make(), on_step=stepped)
        self.members[name] = Member(name, Ledger(self._shape.plan), station)
        self._client.zadd(KEYS.named("workers"), {name: 1e15})

    def _arrive(self, work: Work) -> None:
        self._to_come -= 1
        forecast = Forecast(work.request.prompt.tokens, 0, work.run_s, work.kv_tokens)
        job_id = new_job_id(POOL)
        job = Submission(
            job_id, work.service_class, "/", b"{}", forecast, prefix=work.prefix, deadline_s=LEASE_S
        )
        self._works[job_id] = work
        self._run(scripts.enqueue(job, Order()))
        self.agenda.at(self.agenda.now_s, self._rouse)  # not before all that come at this moment are queued

        after_s = self._shape.plan.preempt_after_s
        if work.service_class is ServiceClass.P0 and after_s is not None:
            self.agenda.at(self.agenda.now_s + after_s, lambda: self._press(work))

    def _rouse(self) -> None:
        idle = [member for member in self.members.values() if self._may_claim(member)]
        if idle:
            self._claim(self._rng.choice(idle))  # whom Redis wakes
            self._wake()

    def _press(self, work: Work) -> None:
        """A P0 job that waits still: a worker that has no slot or too few tokens for it stops its cheapest batch job."""
        now_s = self.agenda.now_s
        full = []
        for member in self.members.values():
            tokens = member.ledger.room(now=now_s).kv_tokens
            if not member.ledger.free or (tokens is not None and tokens < work.kv_tokens):
                full.append(member)
        if work.request.request_id in self.claimed or not full:
            return
        member = self._rng.choice(full)
        member.ledger.missed(now=now_s)
        victim = member.ledger.victim(now=now_s)
        if victim is not None:
            self._hand_back(member, victim)
            self._claim(member)
            self._wake()

    def _run(self, call: Call) -> Any:
        self._clock.now_s = self.agenda.now_s
        return self._clock.run(call)

    def _may_claim(self, member: Member) -> bool:
        return member.ledger.free > 0 and not (self._shape.whole_batches and member.ledger.busy)

    def _claim(self, member: Member) -> None:
        now_s, again = self.agenda.now_s, self._may_claim(member)
        while again and member.ledger.free:
            asking = Asking(member.name, LEASE_S, passing=self._shape.passing)
            answer = self._run(scripts.claim(POOL, asking, room=member.ledger.room(now=now_s)))
            more, wait_ms, rows = int(answer[0]), int(answer[1]), answer[2:]
            for row in rows:
                self._start(member, row)
            if wait_ms >= 0 and member.ledger.free:
                self.agenda.at(now_s + wait_ms / 1000, lambda: self._claim(member))
            again = bool(rows) and more == MAY_CLAIM_AGAIN

    def _start(self, member: Member, row: Any) -> None:
        lease = replace(lease_of(row), stream=True)
        work = self._works[lease.job_id]
        now_s = self.last_claim_s = self.agenda.now_s
        self.generated_at_last_claim = self.generated
        self._busy_area = sum(each.busy.until(now_s) for each in self.members.values())
        member.ledger.take(lease, now=now_s)
        member.leases[work.request.request_id] = lease
        self.claimed.add(work.request.request_id)
        member.busy.set(member.ledger.busy, now_s=now_s)
        member.station.add(work.request)

    def _stepped(self, member: Member, result: StepResult) -> None:
        now_s, ledger = self.agenda.now_s, member.ledger
        self.generated += len(result.emitted)
        grown = {
            ledger.grow(member.leases[token.request_id].job_id, 1, now=now_s)
            for token in result.emitted
            if token.request_id in member.leases
        }
        begun = [token.request_id for token in result.emitted if not token.position]
        self.first_s |= {name: self.first_s.get(name, now_s) for name in begun}
        for request_id in result.finished.keys() & member.leases.keys():
            self._finish(member, request_id)
        if grown - {None} and (victim := ledger.relief(now=now_s)) is not None:
            self._hand_back(member, victim)
        begins = self._shape.plan.prefill_tokens is not None and Grown.BEGUN in grown
        if result.finished or begins:
            self._claim(member)
            self._wake()
        self.watch(member)

    def _finish(self, member: Member, request_id: str) -> None:
        lease = member.leases.pop(request_id)
        self._left -= 1
        answer = self._works[lease.job_id].request.answers[0]
        self._run(scripts.finish(lease.job_id, lease.token, ending=DONE))
        member.ledger.learn(lease.job_id, Usage(0, answer.tokens, 0), now=self.agenda.now_s)
        self._leave(member, lease.job_id)

    def _hand_back(self, member: Member, job_id: str) -> None:
        """The worker stops a batch job before the engine has to choose one."""
        request_id = self._works[job_id].request.request_id
        lease = member.leases.pop(request_id)
        member.station.abort(request_id)
        self._run(scripts.release(job_id, lease.token, given=Return("preempt"), limits=Limits()))
        self.handed_back += 1
        self._leave(member, job_id)

    def _leave(self, member: Member, job_id: str) -> None:
        member.ledger.give_back(job_id)
        member.busy.set(member.ledger.busy, now_s=self.agenda.now_s)

    def _look(self, member: Member) -> None:
        """Now and then the ledger hears how full the engine says its cache is."""
        load = EngineLoad(kv_used_share=member.station.replica.kv_used_share)
        member.ledger.observe(load, now=self.agenda.now_s)
        if self._left:
            self.agenda.at(self.agenda.now_s + LOOK_S, lambda: self._look(member))

    def _wake(self) -> None:
        """Workers for whom a claim left a job."""
        for member in self.members.values():
            if self._client.delete(KEYS.marker(member.name)):
                self._claim(member)


@contextmanager
def engine_fleet(shape: Shape) -> Iterator[EngineFleet]:
    """On an empty Redis of its own."""
    with own_redis(aof=False) as url, redis.Redis.from_url(url) as client:
        yield EngineFleet(client, shape)
