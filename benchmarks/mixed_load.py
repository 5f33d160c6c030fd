"""The mixed load of the gateway harness: chat (P0), bursts of agents (P1), and a batch (P2) that is there at once."""

import math
import random
from dataclasses import dataclass
from statistics import fmean

from broker.job import ServiceClass

ENGINES, SLOTS = 4, 16
BASE_S, PER_ANSWER_S, PREFILL_PER_S = (
    0.020,
    0.0004,
    16_000,
)  # of a step, for each answer in it; prompt tokens a second
FULL_STEP_S = BASE_S + PER_ANSWER_S * SLOTS
ARRIVALS_S, IDEAL_S = 45.0, 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Lengths are log-normal: (median, sigma, least, most) tokens. `prefix`: tokens that requests have in common."""

    service_class: ServiceClass
    prompt: tuple[float, float, int, int]
    output: tuple[float, float, int, int]
    prefix: int


CHAT = Kind(ServiceClass.P0, (350, 0.7, 80, 2500), (120, 0.9, 4, 800), 256)
AGENT = Kind(ServiceClass.P1, (400, 0.5, 100, 1500), (60, 0.7, 4, 400), 1024)
BATCH = Kind(ServiceClass.P2, (500, 0.6, 100, 3000), (200, 1.0, 8, 1000), 128)


@dataclass(slots=True, eq=False)
class Request:
    """`left`: prompt tokens to be read. `token`: of its lease. Times in seconds since the beginning."""

    at_s: float
    kind: Kind
    prompt: int
    output: int
    prefix: str
    job_id: str = ""
    token: int = 0
    left: int = 0
    made: int = 0
    first_s: float = math.inf
    end_s: float = math.inf

    @property
    def cost_s(self) -> float:
        return self.output * FULL_STEP_S / SLOTS + self.prompt / PREFILL_PER_S


def drawn(rng: random.Random, kind: Kind, *, at_s: float, prefix: str) -> Request:
    def length(median: float, sigma: float, least: int, most: int) -> int:
        return round(min(max(rng.lognormvariate(math.log(median), sigma), least), most))

    shared = kind.prefix if prefix else 0
    return Request(at_s, kind, length(*kind.prompt) + shared, length(*kind.output), prefix)


def load(seed: int) -> list[Request]:
    """P0 at 40 % of the fleet and P1 at 10 % for 45 s; P2 fills the fleet up to 60 s."""
    rng, found, at_s = random.Random(seed), list[Request](), 0.0
    mean_s = fmean(drawn(rng, CHAT, at_s=0, prefix="").cost_s for _ in range(4000))
    while (at_s := at_s + rng.expovariate(0.4 * ENGINES / mean_s)) < ARRIVALS_S:
        prefix = f"chat{rng.randrange(8)}" if rng.random() < 0.6 else ""
        found.append(drawn(rng, CHAT, at_s=at_s, prefix=prefix))
    mean_s = 10 * fmean(drawn(rng, AGENT, at_s=0, prefix="").cost_s for _ in range(4000))
    every_s = (mean_s + AGENT.prefix / PREFILL_PER_S) / (0.1 * ENGINES)
    for burst in range(int(ARRIVALS_S / every_s)):
        for _ in range(rng.randint(6, 14)):
            at_s = (burst + 0.5) * every_s + rng.random() / 2
            found.append(drawn(rng, AGENT, at_s=at_s, prefix=f"agent{burst}"))
    spent_s = sum(request.cost_s for request in found)
    while spent_s < IDEAL_S * ENGINES:
        found.append(drawn(rng, BATCH, at_s=0.0, prefix="batch"))
        spent_s += found[-1].cost_s
    return sorted(found, key=lambda request: request.at_s)
