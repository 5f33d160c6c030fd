"""Does the forecast learn? A tenant of recurring templates sends 5,000 requests and changes its habits half way.

All of it is what runs in production: pasts through Redis, outcomes in the stream, training by the chore's own process, a
promotion only of what is better, models exchanged while they serve. Only the engine is not there: outputs are drawn.
"""

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # `predictor` is the package, not this folder's file

from figures import Figure, arguments, report
from own_redis import own_redis

from broker import fleet, learning
from broker.config import Config
from broker.connection import Pipe
from broker.learning import Outcome
from predictor import own_traffic, retrain
from predictor.features import VERSION, extract
from predictor.foresight import Foresight, learned_estimator
from predictor.habits import past_key
from predictor.history import template_key
from predictor.length import Lengths
from predictor.model_store import ModelStore

REQUESTS, SHIFT = 5_000, 2_500
LOOK_EVERY = 25  # requests between looks at Redis: a second's worth
TRAIN_EVERY = 1_000
WINDOW = 250
TENANT, POOL = "acme", "small"
SPREAD = 0.2  # of one template's outputs, on the logarithm: even a perfect forecast is off by so much
JOBS = (
    ("support desk", "Summarise the ticket below for the next shift."),
    ("mail room", "Classify the mail below; answer with its department."),
    ("sales", "Draft a friendly reply to the customer below."),
    ("finance", "Extract amount, date and payee of the invoice below as JSON."),
    ("operations", "Explain what the log below says went wrong, step by step."),
    ("legal", "List the obligations in the clause below."),
    ("marketing", "Write a post about the product below."),
    ("research", "Compare the two abstracts below."),
    ("translation", "Translate the notice below into French."),
    ("people", "Rewrite the announcement below in plain words."),
)
HABITS = (90, 6, 220, 60, 420, 150, 800, 330, 120, 180)  # median output tokens
NEW_HABITS = (280, 6, 70, 60, 1200, 50, 800, 110, 350, 180)
WORDS = [
    "the",
    "shipment",
    "order",
    "account",
    "server",
    "paid",
    "late",
    "error",
    "screen",
    "again",
    "customer",
    "monday",
    "report",
    "please",
    "red",
]


@dataclass(slots=True)
class Tenant:
    """Draws requests, and what comes of them."""

    chance: random.Random = field(default_factory=lambda: random.Random(20))

    def next(self, habits: Sequence[int]) -> tuple[dict[str, Any], int]:
        at = self.chance.randrange(len(JOBS))
        desk, task = JOBS[at]
        text = " ".join(self.chance.choices(WORDS, k=self.chance.randint(30, 60)))
        document = {
            "messages": [
                {"role": "system", "content": f"You work for the {desk} team."},
                {"role": "user", "content": f"{task}\n\n{text}"},
            ]
        }
        return document, max(1, round(habits[at] * self.chance.lognormvariate(0, SPREAD)))


@dataclass(slots=True)
class Run:
    """Relative errors of P50 of all requests: as learned, and by the same models without any past or training."""

    learned: list[float] = field(default_factory=list)
    frozen: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)  # by P90
    promoted: int = 0
    refused: int = 0


def outcome_of(document: dict[str, Any], tokens: int, *, foretold: Lengths) -> Outcome:
    """As a worker reports it."""
    features = extract(document)
    key = past_key(TENANT, template_key(document))
    counts = (features.prompt_tokens, 0, tokens)
    return Outcome(
        key,
        features.values,
        VERSION,
        str(features.prompt_type),
        *counts,
        0.1 + 0.01 * tokens,
        1.0,
        ended="stop",
        forecast_tokens=round(foretold.p50),
        forecast_p90=round(foretold.p90),
    )


async def drive(pipe: Pipe, home: Path, *, requests: int, shift: int) -> Run:
    await fleet.announce_pool(pipe, POOL)
    foresight = Foresight(pipe, learned_estimator(Config()), ModelStore(home), "benchmark")
    frozen = learned_estimator(Config())
    await foresight.look()
    if foresight.estimator.models is None:
        raise SystemExit("the shipped models cannot be loaded; is LightGBM installed?")
    frozen.models = foresight.estimator.models
    tenant, run, waiting = Tenant(), Run(), list[Outcome]()
    for number in range(requests):
        document, tokens = tenant.next(HABITS if number < shift else NEW_HABITS)
        found, plain = (each.foresee(POOL, document, tenant=TENANT) for each in (foresight.estimator, frozen))
        assert found is not None
        assert plain is not None
        note(run, found.lengths, plain.lengths, tokens=tokens)
        waiting.append(outcome_of(document, tokens, foretold=found.lengths))
        if len(waiting) == LOOK_EVERY:
            await pipe.run(learning.report(POOL, waiting))
            waiting.clear()
            await foresight.look()
        if number % TRAIN_EVERY == TRAIN_EVERY - 1 and number + 1 < requests:
            await train(pipe, home, run=run)
    return run


def note(run: Run, found: Lengths, plain: Lengths, *, tokens: int) -> None:
    run.learned.append(abs(found.p50 / tokens - 1))
    run.frozen.append(abs(plain.p50 / tokens - 1))
    run.covered.append(tokens <= found.p90)


async def train(pipe: Pipe, home: Path, *, run: Run) -> None:
    """As the chore does it."""
    path = home / "rows.jsonl"
    own_traffic.write_rows(path, await own_traffic.collect(pipe, most=10_000))
    verdict = await asyncio.to_thread(retrain.run, path, home)
    path.unlink()
    run.promoted += verdict.promoted
    run.refused += not verdict.promoted
    print(verdict, file=sys.stderr)


def figures(run: Run, *, shift: int, seconds: float) -> list[Figure]:
    """Medians over windows; each beside the same models left as they were shipped."""
    n = len(run.learned)
    windows = {"first": 0, "before_shift": shift - WINDOW, "after_shift": shift, "end": n - WINDOW}
    trained = f"{run.promoted} of {run.promoted + run.refused} candidates promoted"
    made = []
    for name, start in windows.items():
        where = f"requests {start}-{start + WINDOW} of {n}, {len(JOBS)} templates; {trained}"
        made += _window(name, (run.learned[start:][:WINDOW], run.frozen[start:][:WINDOW]), where)
    cover = round(sum(run.covered[-WINDOW:]) / WINDOW, 4)
    setting = f"last {WINDOW} requests; baseline: what P90 promises"
    made.append(Figure("learn.p90_cover.end", cover, "share", 0.9, setting))
    setting = f"{trained}; {seconds:.0f} s in all"
    return [*made, Figure("learn.promoted", run.promoted, "candidates", None, setting)]


def _window(name: str, errors: tuple[list[float], list[float]], where: str) -> list[Figure]:
    """`errors`: as learned, and of the baseline."""
    floor = f"even the true median is off by {0.6745 * SPREAD:.3f}"
    setting = f"median of |P50/actual - 1|, {where}; {floor}; baseline: shipped models, no past"
    mine, plain = (round(statistics.median(each), 4) for each in errors)
    within, plainly = (round(sum(error <= 0.2 for error in each) / len(each), 4) for each in errors)
    return [
        Figure(f"learn.error.{name}", mine, "of the output", plain, setting),
        Figure(f"learn.within20.{name}", within, "share of requests", plainly, setting),
    ]


async def main() -> None:
    options = arguments(__doc__).parse_args()
    requests, shift = (3_000, 1_500) if options.quick else (REQUESTS, SHIFT)
    began = time.perf_counter()
    with own_redis(aof=False) as url, tempfile.TemporaryDirectory() as home:
        pipe = Pipe(url)
        try:
            run = await drive(pipe, Path(home), requests=requests, shift=shift)
        finally:
            await pipe.close()
    report(figures(run, shift=shift, seconds=time.perf_counter() - began), options.json)


if __name__ == "__main__":
    asyncio.run(main())
