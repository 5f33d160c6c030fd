"""Mixed load in virtual time: the queue's own scripts and the worker's own ledger, with a clock that does not wait.

Engines take the time that a job was drawn to take, whatever else they run. Used by `queueing.py`.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis
from figures import Figure
from own_redis import own_redis
from virtual_clock import VirtualClock

from broker import scripts
from broker.consumer import lease_of
from broker.job import Forecast, Lease, ServiceClass, Submission, new_job_id
from broker.keys import PoolKeys
from broker.policy import AGING, Asking, Limits, Order
from broker.scripts import Ending, Return
from workers.capacity import MAX_PREEMPTS, Ledger, Plan

POOL = "virtual"
KEYS = PoolKeys(POOL)
DONE = Ending(succeeded=True, data=b"")
PREEMPT_AFTER_S = Plan(1).preempt_after_s or math.inf
LEASE_S = 1e6  # nobody dies here, so nobody beats
SEED = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """`run_s`: what the job takes; the queue is told a guess that is wrong by a factor of up to two."""

    at_s: float
    service_class: ServiceClass
    run_s: float
    tenant: str = "default"
    weight: float = 0.0


@dataclass(slots=True)
class Ran:
    """One job as it went. `wait_s`: from arrival to its first start; infinite while it has not begun."""

    arrival: Arrival
    wait_s: float = math.inf
    ended_s: float = math.inf


@dataclass(slots=True, kw_only=True)
class Fleet(VirtualClock):
    """Workers with slots."""

    workers: dict[str, Ledger]
    known: dict[str, Ran] = field(default_factory=dict)
    leases: dict[str, tuple[str, Lease]] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))

    def play(self, arrivals: list[Arrival], *, until_s: float) -> list[Ran]:
        for arrival in arrivals:
            self.plan(arrival.at_s, "arrive", arrival)
        for second in range(1, math.ceil(until_s)):
            self.plan(float(second), "reap", None)
        while self.agenda and self.agenda[0][0] <= until_s:
            self.next_event()
        return list(self.known.values())

    def arrive(self, arrival: Arrival) -> None:
        guess_s = arrival.run_s * 2 ** self.rng.uniform(-1, 1)
        job = Submission(
            new_job_id(POOL),
            arrival.service_class,
            "/",
            b"{}",
            Forecast(1, 1, guess_s),
            tenant=arrival.tenant,
            weight=arrival.weight,
            deadline_s=1e6,
        )
        self.known[job.job_id] = Ran(arrival)
        self.run(scripts.enqueue(job, Order()))
        idle = [name for name, ledger in self.workers.items() if ledger.free]
        if idle:
            self.claim(self.rng.choice(idle))  # whom Redis wakes
        elif arrival.service_class is ServiceClass.P0:
            self.plan(self.now_s + PREEMPT_AFTER_S, "press", job.job_id)

    def claim(self, name: str) -> None:
        ledger = self.workers[name]
        _, wait_ms, *rows = self.run(
            scripts.claim(POOL, Asking(name, LEASE_S), room=ledger.room(now=self.now_s))
        )
        if wait_ms >= 0 and ledger.free > len(rows):
            self.plan(self.now_s + wait_ms / 1000, "claim", name)
        for row in rows:
            lease = lease_of(row)
            ran = self.known[lease.job_id]
            ledger.take(lease, now=self.now_s)
            self.leases[lease.job_id] = (name, lease)
            ran.wait_s = min(ran.wait_s, self.now_s - ran.arrival.at_s)
            self.plan(self.now_s + ran.arrival.run_s, "finish", lease)
        self.wake()

    def wake(self) -> None:
        """Workers for whom the last claim left a job."""
        for name, ledger in self.workers.items():
            if self.client.delete(KEYS.marker(name)) and ledger.free:
                self.claim(name)

    def finish(self, lease: Lease) -> None:
        name, held = self.leases.get(lease.job_id, ("", None))
        if held != lease:
            return  # it was preempted meanwhile
        self.run(scripts.finish(lease.job_id, lease.token, ending=DONE))
        self.known[lease.job_id].ended_s = self.now_s
        self.leave(name, lease.job_id)

    def leave(self, name: str, job_id: str) -> None:
        del self.leases[job_id]
        self.workers[name].give_back(job_id)
        self.claim(name)

    def press(self, job_id: str) -> None:
        """If a P0 job still waits, some worker stops its cheapest batch job, as `workers.pull` does."""
        victims = {name: ledger.victim(now=self.now_s) for name, ledger in self.workers.items()}
        able = [name for name, victim in victims.items() if victim is not None]
        if self.known[job_id].wait_s < math.inf or not able:
            return
        name = self.rng.choice(able)
        victim = victims[name] or ""
        self.workers[name].missed(now=self.now_s)
        given = Return("preempt")
        self.run(scripts.release(victim, self.leases[victim][1].token, given=given, limits=Limits()))
        self.leave(name, victim)

    def reap(self, _: None) -> None:
        self.run(scripts.reap(POOL, Limits(lease_s=LEASE_S), every_s=0.001))
        for name, ledger in self.workers.items():
            if ledger.free:
                self.claim(name)


@contextmanager
def fleet(*, workers: int, slots: int) -> Iterator[Fleet]:
    """A fleet on an empty Redis of its own."""
    with own_redis(aof=False) as url, redis.Redis.from_url(url) as client:
        names = [f"w{n}" for n in range(workers)]
        client.zadd(KEYS.named("workers"), dict.fromkeys(names, 1e15))
        yield Fleet(client=client, workers={name: Ledger(Plan(slots)) for name in names})


def poisson(
    rng: random.Random, service_class: ServiceClass, *, per_s: float, mean_s: float, seconds: float
) -> list[Arrival]:
    """Independent arrivals; run times log-normal with a tail (sigma 0.8)."""
    found, at_s = [], 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < seconds:
        found.append(Arrival(at_s, service_class, mean_s * rng.lognormvariate(-0.32, 0.8)))
    return found


def p0_wait_p99(flood: int, *, seconds: float) -> float:
    rng = random.Random(SEED)
    chat = poisson(rng, ServiceClass.P0, per_s=6.0, mean_s=4.0, seconds=seconds)  # 75 % of 32 slots
    batch = [Arrival(0.0, ServiceClass.P2, 20.0 * rng.lognormvariate(-0.32, 0.8)) for _ in range(flood)]
    with fleet(workers=4, slots=8) as these:
        ran = these.play(batch + chat, until_s=seconds)
    waits = sorted(
        r.wait_s for r in ran if r.arrival.service_class is ServiceClass.P0 and r.wait_s < math.inf
    )
    return waits[int(0.99 * len(waits))]


def flood(*, quick: bool) -> list[Figure]:
    seconds, jobs = (120.0, 500) if quick else (900.0, 5000)
    alone, flooded = p0_wait_p99(0, seconds=seconds), p0_wait_p99(jobs, seconds=seconds)
    setting = f"virtual time, 4 workers of 8 slots, P0 75 % of them for {seconds:.0f} s, {jobs} P2 jobs at once, seed {SEED}"
    floor = max(alone, 0.01)
    return [
        Figure("mixed.p0_wait_p99_ratio_flood", flooded / floor, "times (of at least 10 ms)", 1.0, setting),
        Figure("mixed.p0_wait_p99_s_flood", flooded, "s", alone, f"{setting}; baseline: without P2"),
    ]


def starvation(*, quick: bool) -> list[Figure]:
    """P0 traffic alone is more than the fleet can do; the oldest P3 job against the bound of docs/scheduling.md."""
    rng, seconds = random.Random(SEED), 3000.0 if quick else 5400.0
    slots, mean_s, old = 4, 8.0, 5
    busy = poisson(rng, ServiceClass.P0, per_s=1.2 * slots / mean_s, mean_s=mean_s, seconds=seconds)
    background = [Arrival(0.0, ServiceClass.P3, 10.0) for _ in range(old)]
    with fleet(workers=1, slots=slots) as these:
        ran = these.play(background + busy, until_s=seconds)
    worst = max(r.wait_s for r in ran if r.arrival.service_class is ServiceClass.P3)
    rise_s = sum(AGING.ages_s[1:]) + 3.0  # promotions happen within a second
    # A promoted job that is preempted comes back before those behind it.
    claims = math.ceil((old + 1) * (1 + MAX_PREEMPTS) / AGING.share)
    bound = rise_s + claims * mean_s / slots
    setting = f"virtual time, {slots} slots, P0 at 120 % of them, {old} P3 jobs; bound: {rise_s:.0f} s and {claims} claims"
    return [Figure("mixed.p3_wait_over_bound", worst / bound, "of the bound", 1.0, setting)]


def served(weight: float, *, quick: bool) -> float:
    """Jain index of two tenants' served seconds when the smaller one's last job ends (or would have, fairly)."""
    rng, few = random.Random(SEED), 20 if quick else 60
    small = [Arrival(0.0, ServiceClass.P2, rng.uniform(2, 8), "small", weight) for _ in range(few)]
    large = [Arrival(0.0, ServiceClass.P2, rng.uniform(2, 8), "large", weight) for _ in range(100 * few)]
    fair_s = 2 * sum(a.run_s for a in small) / 8
    with fleet(workers=1, slots=8) as these:
        ran = these.play(large + small, until_s=fair_s)
    done = [
        sum(r.arrival.run_s for r in ran if r.arrival.tenant == tenant and r.ended_s <= fair_s)
        for tenant in ("small", "large")
    ]
    return sum(done) ** 2 / (2 * sum(d * d for d in done))


def fairness(*, quick: bool) -> list[Figure]:
    setting = (
        "virtual time, two tenants of equal weight with a backlog, one has 100 times more jobs and came first"
    )
    fair, unfair = served(1.0, quick=quick), served(0.0, quick=quick)
    return [
        Figure("mixed.jain_tenants", fair, "Jain index", unfair, f"{setting}; baseline: nobody is charged")
    ]


def all_virtual(*, quick: bool) -> list[Figure]:
    return [*flood(quick=quick), *starvation(quick=quick), *fairness(quick=quick)]
