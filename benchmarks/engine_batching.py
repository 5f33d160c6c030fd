"""How full Headway keeps an engine: its places, and its KV cache. Simulated engines in virtual time; used by `engines.py`.

Lengths are log-normal, with the parameters of the Azure 2023 conversation trace (prompts 6.71 and 0.98, answers 4.97 and
0.89 in log tokens), cut off at what the engine takes.
"""

import math
import random
from dataclasses import dataclass

from engine_fleet import SEED, EngineFleet, Gauge, Member, Shape, Work, engine_fleet
from figures import Figure

from broker.job import ServiceClass
from predictor import perf
from workers.capacity import Plan
from workers.engines.sim.replica import Replica
from workers.engines.sim.scheduler import Limits
from workers.engines.sim.sequence import Answer, Request, prompt_of

GPU = "llama-3.1-8b-bf16@1xh100"
SLOTS = 64
LONGEST_PROMPT, LONGEST_ANSWER, MODEL_LEN = 3000, 1000, 4096


def works(count: int, *, shortest_first: bool, service_class: ServiceClass = ServiceClass.P0) -> list[Work]:
    """All at once. The queue is told a need that is wrong by a factor of up to two in the answer.

    `shortest_first` False: it is told that all take equally long, so they go as they came.
    """
    rng = random.Random(SEED)
    found = []
    for n in range(count):
        prompt = min(LONGEST_PROMPT, max(16, round(rng.lognormvariate(6.71, 0.98))))
        output = min(LONGEST_ANSWER, max(1, round(rng.lognormvariate(4.97, 0.89))))
        told = min(LONGEST_ANSWER, round(output * 2 ** rng.uniform(-1, 1)))
        request = Request(str(n), prompt_of([1000 + n] * prompt), (Answer(output, seed=n),))
        run_s = told / 50 if shortest_first else 1.0
        found.append(Work(0.0, request, run_s, prompt + told, service_class=service_class))
    return found


def engine(**changes: int) -> Replica:
    hardware = perf.load(GPU)
    limits = {"kv_tokens": hardware.replica.kv_capacity_tokens(), "max_model_len": MODEL_LEN} | changes
    return Replica(Limits(**limits), hardware)  # type: ignore[arg-type]


def refilled(jobs: int, *, whole_batches: bool, shortest_first: bool = False) -> tuple[float, float]:
    """Share of busy slots and tokens a second, until the last claim."""
    shape = Shape(1, Plan(SLOTS), lambda: engine(max_num_seqs=SLOTS), whole_batches=whole_batches)
    with engine_fleet(shape) as fleet:
        fleet.play(works(jobs, shortest_first=shortest_first))
        return fleet.busy_share(), fleet.generated_at_last_claim / fleet.last_claim_s


def batching(jobs: int = 6000) -> list[Figure]:
    """Places are refilled one by one, or a batch is claimed when the last one has ended."""
    busy, speed = refilled(jobs, whole_batches=False)
    static_busy, static_speed = refilled(jobs, whole_batches=True)
    sorted_busy, sorted_speed = refilled(jobs, whole_batches=True, shortest_first=True)
    setting = f"virtual time, {GPU}, {SLOTS} slots, {jobs:,} queued jobs with Azure-like lengths in the order of arrival"
    alike = f"with the shortest first, which makes batches alike, {sorted_busy:.3f} and {sorted_speed:,.0f} tokens/s"
    return [
        Figure("batching.virtual_busy_slots_continuous", busy, "of slots", static_busy, setting),
        Figure(
            "batching.busy_slots_static", static_busy, "of slots", None, f"{setting}; whole batches; {alike}"
        ),
        Figure(
            "batching.virtual_tokens_per_s_ratio",
            speed / static_speed,
            "times batch-at-a-time",
            1.0,
            f"{setting}; {speed:,.0f} against {static_speed:,.0f} tokens/s",
        ),
    ]


@dataclass(slots=True)
class Fill:
    """The share of the cache that holds tokens of running jobs, over time, from when it was first full."""

    fleet: EngineFleet
    gauge: Gauge
    begun_s: float = math.inf
    ended_s: float = 0.0
    most: float = 0.0

    def watch(self, member: Member) -> None:
        replica, now_s = member.station.replica, self.fleet.agenda.now_s
        share = replica.live_tokens / (replica.pool.total * replica.limits.block_tokens)
        self.most = max(self.most, replica.kv_used_share)
        if self.fleet.waiting and self.begun_s == math.inf:
            self.begun_s = self.gauge.since_s = now_s
        if self.fleet.waiting:
            self.ended_s = now_s
            self.gauge.set(share, now_s=now_s)

    @property
    def mean(self) -> float:
        return self.gauge.area / (self.ended_s - self.begun_s)


def filled(shape: Shape, jobs: int) -> tuple[Fill, EngineFleet]:
    with engine_fleet(shape) as fleet:
        fill = Fill(fleet, Gauge())
        fleet.watch = fill.watch
        fleet.play(works(jobs, shortest_first=True, service_class=ServiceClass.P2))
        return fill, fleet


def kv_cache(*, quick: bool) -> list[Figure]:
    """Pages that grow with the answers, by the worker's ledger, against room for the longest request from the start."""
    kv_tokens, slots, jobs = 65_536, 256, 600 if quick else 6000
    plan = Plan(slots, kv_tokens=kv_tokens)
    paged, fleet = filled(Shape(1, plan, lambda: engine(kv_tokens=kv_tokens)), jobs)
    whole = kv_tokens // MODEL_LEN
    reserving = Shape(
        1, Plan(whole), lambda: engine(kv_tokens=kv_tokens, max_num_seqs=whole, reserve_tokens=MODEL_LEN)
    )
    reserved, _ = filled(reserving, jobs)
    setting = f"virtual time, {GPU} with {kv_tokens:,} tokens of KV, {jobs:,} queued jobs with Azure-like lengths, while jobs wait"
    seen = f"cache used at most {100 * paged.most:.1f} %, {fleet.handed_back} jobs handed back by the worker"
    return [
        Figure("kv.live_share_paged", paged.mean, "of the cache", reserved.mean, f"{setting}; {seen}"),
        Figure(
            "kv.live_share_reserved",
            reserved.mean,
            "of the cache",
            None,
            f"{setting}; {MODEL_LEN:,} tokens for each job",
        ),
        Figure("kv.preemptions", fleet.totals("preemptions"), "by the engine", None, f"{setting}; {seen}"),
    ]
