"""Mixed load on engines that batch, in virtual time: the queue's own scripts and the worker's own ledger.

Load and engine are as in the gateway harness' suite `mixed`: a step takes 20 ms, 0.4 ms for each running answer and the
time of the prompt tokens in it, of which there are 1,024 at most. Nobody knows how long an answer will be. Used by
`queueing.py`.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean

import redis
from figures import Figure
from mixed_load import (
    BASE_S,
    BATCH,
    CHAT,
    ENGINES,
    IDEAL_S,
    PER_ANSWER_S,
    PREFILL_PER_S,
    SLOTS,
    Request,
    load,
)
from own_redis import own_redis
from virtual_clock import VirtualClock

from broker import scripts
from broker.consumer import lease_of
from broker.job import Forecast, Lease, Submission, new_job_id
from broker.keys import PoolKeys
from broker.policy import Asking, Limits, Order
from broker.scripts import Ending, Return
from workers.capacity import Grown, Ledger, Plan
from workers.engine import Usage

POOL = "mixed"
KEYS = PoolKeys(POOL)
DONE = Ending(succeeded=True, data=b"")
LEASE_S = 1e6  # nobody dies here, so nobody beats
STEP_TOKENS = 1024
MAX_TOKENS = 2048  # what every caller asks for
SLO_S = 0.5


@dataclass(slots=True, eq=False)
class Replica:
    """One worker and its engine."""

    name: str
    ledger: Ledger
    running: list[Request] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    is_stepping: bool = False


@dataclass(slots=True, kw_only=True)
class Fleet(VirtualClock):
    """What is not modelled: the milliseconds of HTTP and Redis."""

    replicas: list[Replica]
    plan_of_all: Plan
    known: dict[str, Request] = field(default_factory=dict)
    preempted: int = 0
    unfinished: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def play(self, requests: list[Request]) -> None:
        self.unfinished = len(requests)
        for request in requests:
            self.plan(request.at_s, "arrive", request)
        self.plan(1.0, "look", None)
        while self.unfinished:
            self.next_event()

    def arrive(self, request: Request) -> None:
        request.job_id = new_job_id(POOL)
        self.known[request.job_id] = request
        forecast = Forecast(request.prompt, MAX_TOKENS, request.prompt * 0.0005 + MAX_TOKENS * 0.02)
        job = Submission(
            request.job_id,
            request.kind.service_class,
            "/",
            b"{}",
            forecast,
            prefix=request.prefix,
            deadline_s=1e6,
        )
        self.run(scripts.enqueue(job, Order()))
        bulk = request.kind is BATCH
        rooms = [(replica, replica.ledger.room(now=self.now_s)) for replica in self.replicas]
        roomy = [replica for replica, room in rooms if (room.bulk_slots if bulk else room.slots)]
        if roomy:
            self.claim(self.rng.choice(roomy))
        if request.kind is CHAT and request.token == 0:
            self.ring()

    def ring(self) -> None:
        """Full workers hear of a P0 job, one after the other, up to one that could stop somebody cheap."""
        full = [replica for replica in self.replicas if not replica.ledger.free]
        for replica in self.rng.sample(full, len(full)):
            patience_s = replica.ledger.patience_s(now=self.now_s)
            if patience_s is not None:
                self.plan(self.now_s + patience_s, "press", replica)
            if patience_s == self.plan_of_all.preempt_after_s:
                return

    def look(self, _: None) -> None:
        """Workers that nobody rang look by themselves."""
        self.run(scripts.reap(POOL, Limits(lease_s=LEASE_S), every_s=0.001))
        for replica in self.replicas:
            self.claim(replica)
        self.plan(self.now_s + 1.0, "look", None)

    def claim(self, replica: Replica) -> None:
        ledger = replica.ledger
        if not ledger.free:
            return
        asking = Asking(replica.name, LEASE_S)
        more, wait_ms, *rows = self.run(scripts.claim(POOL, asking, room=ledger.room(now=self.now_s)))
        for row in rows:
            lease = lease_of(row)
            self.start(replica, self.known[lease.job_id], lease=lease)
        due = (wait_ms / 1000 if wait_ms >= 0 else None, ledger.next_room_s(now=self.now_s))
        if ledger.free and more and (waits := [s for s in due if s is not None]):
            self.plan(self.now_s + max(0.001, min(waits)), "claim", replica)
        for other in self.replicas:
            if other is not replica and self.client.delete(KEYS.marker(other.name)):
                self.plan(self.now_s, "claim", other)

    def start(self, replica: Replica, request: Request, *, lease: Lease) -> None:
        request.token, request.made = lease.token, 0
        cached = request.kind.prefix if request.prefix in replica.prefixes else 0
        request.left = max(1, request.prompt - cached)
        stream = request.kind is not BATCH
        lease = replace(lease, stream=stream, attached=stream)
        replica.ledger.take(lease, now=self.now_s)
        replica.running.append(request)
        if not replica.is_stepping:
            self.step(replica)

    def step(self, replica: Replica) -> None:
        """Prompts are read in the order of their arrival; who has been read gets a token."""
        batch, read, writing = replica.running, 0, []
        budget = STEP_TOKENS - sum(not request.left for request in batch)
        for request in batch:
            piece = min(request.left, budget - read)
            request.left -= piece
            read += piece
            if not request.left:
                writing.append((request, request.token))
        replica.is_stepping = bool(batch)
        if batch:
            took_s = BASE_S + PER_ANSWER_S * len(batch) + read / PREFILL_PER_S
            self.plan(self.now_s + took_s, "stepped", (replica, writing))

    def stepped(self, subject: tuple[Replica, list[tuple[Request, int]]]) -> None:
        replica, writing = subject
        has_room = False
        for request, token in writing:
            if request in replica.running and request.token == token:
                has_room = self.write(replica, request) or has_room
        replica.is_stepping = False
        if has_room:
            self.claim(replica)
        if not replica.is_stepping:
            self.step(replica)

    def write(self, replica: Replica, request: Request) -> bool:
        """One token. True if there may be room now."""
        request.made += 1
        replica.prefixes.add(request.prefix)
        request.first_s = min(request.first_s, self.now_s)
        begun = request.kind is not BATCH and replica.ledger.grow(request.job_id, 1, now=self.now_s)
        if request.made < request.output:
            return begun is Grown.BEGUN
        request.end_s = self.now_s
        usage = Usage(request.prompt, request.output, 0)
        replica.ledger.learn(request.job_id, usage, now=self.now_s)
        self.unfinished -= 1
        self.run(scripts.finish(request.job_id, request.token, ending=DONE))
        self.leave(replica, request)
        return True

    def leave(self, replica: Replica, request: Request) -> None:
        replica.running.remove(request)
        replica.ledger.give_back(request.job_id)

    def press(self, replica: Replica) -> None:
        """As `workers.pull` does when a P0 job has waited."""
        waited_ms = self.run(scripts.urgent(POOL))
        patience_s = replica.ledger.patience_s(now=self.now_s)
        if waited_ms < 0 or replica.ledger.free or patience_s is None:
            return
        left_s = patience_s - waited_ms / 1000
        if left_s > 0:
            self.plan(self.now_s + left_s, "press", replica)  # those who had waited longer have begun
            return
        replica.ledger.missed(now=self.now_s)
        victim = replica.ledger.victim(now=self.now_s)
        if victim is None:
            return
        self.preempted += 1
        request = self.known[victim]
        self.run(scripts.release(victim, request.token, given=Return("preempt"), limits=Limits()))
        self.leave(replica, request)
        self.claim(replica)


@contextmanager
def fleet(plan: Plan) -> Iterator[Fleet]:
    """On an empty Redis of its own."""
    with own_redis(aof=False) as url, redis.Redis.from_url(url) as client:
        replicas = [Replica(f"w{n}", Ledger(plan)) for n in range(ENGINES)]
        client.zadd(KEYS.named("workers"), {replica.name: 1e15 for replica in replicas})
        yield Fleet(client=client, replicas=replicas, plan_of_all=plan)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds, of one run."""

    ttft_p50_s: float
    ttft_p99_s: float
    within_slo: float
    makespan_s: float
    preempted: int


def played(plan: Plan, seed: int) -> Outcome:
    with fleet(plan) as these:
        these.play(load(seed))
        ran = list(these.known.values())
        ttfts = sorted(r.first_s - r.at_s for r in ran if r.kind is CHAT)
        within = sum(ttft <= SLO_S for ttft in ttfts) / len(ttfts)
        p50, p99 = ttfts[len(ttfts) // 2], ttfts[int(0.99 * len(ttfts))]
        return Outcome(p50, p99, within, max(r.end_s for r in ran), these.preempted)


OURS = Plan(SLOTS, prefill_tokens=4096)
ORDER_ALONE = Plan(SLOTS, reserve=0.0, preempt_after_s=None)


def mixed(*, quick: bool) -> list[Figure]:
    """With reserve, preemption and prefill budget, against the order of the queue alone."""
    seeds = range(1, 3 if quick else 9)
    ours, alone = ([played(plan, seed) for seed in seeds] for plan in (OURS, ORDER_ALONE))
    setting = (
        f"virtual time, {ENGINES} engines of {SLOTS} slots, ideal makespan {IDEAL_S:.0f} s, answers of unknown length, "
        f"mean of seeds {seeds.start}-{seeds.stop - 1}; baseline: priorities without reserve, preemption, prefill budget"
    )
    units = {"ttft_p50_s": "s", "ttft_p99_s": "s", "within_slo": f"of P0 within {SLO_S} s", "makespan_s": "s"}
    units["preempted"] = "jobs of a run"
    return [
        Figure(
            f"mixed.virtual_{name}",
            fmean(getattr(run, name) for run in ours),
            unit,
            fmean(getattr(run, name) for run in alone),
            setting,
        )
        for name, unit in units.items()
    ]
