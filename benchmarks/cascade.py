"""A cascade by real token probabilities: the embedded model answers first, and the product's own verdict judges it.

Each question goes through `workers.guard.Guard`, as a worker has it, to llama.cpp with probabilities on. What is looked at
is the order that the confidence of the first tokens gives: which answers would be handed on first. Beside it routing alone
(the classifier that ships, learned anew in five folds from the outcomes of this very pair), chance, and both models.

    python benchmarks/cascade.py [--quick] [--json FILE]
"""

import asyncio
import contextlib
import sys
from dataclasses import dataclass

import numpy as np
import orjson
import router_rows as rows
from cascade_cases import Case, Question, cases
from cascade_latency import latency
from figures import Figure, arguments, report
from router_scores import Floats, auroc, by_chance, routed, saved

from broker.heirs import Plan
from broker.job import Lease, ServiceClass, new_job_id
from broker.route_config import CascadeConfig
from predictor.train.sufficiency import FOLDS, folds, unseen
from workers.engine import CHAT, Delta, Engine, EngineCall, EngineUnavailable, Final
from workers.engines.llamacpp import LlamaCppEngine
from workers.guard import Guard, Unfit

WINDOW, FLOOR = CascadeConfig().window, CascadeConfig().floor
WINDOWS = (1, 4, WINDOW)
AT_ONCE = 4
QUALITY = 0.95
SEEDS = 5
ATTEMPTS = 3
FEWEST = 3  # answers that are right, and that are wrong
NEVER = 10 * 3600.0


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of the small model. `confidence`: by window; None: the engine gave no probabilities. `flaw`: a verdict without them."""

    text: str
    confidence: tuple[float | None, ...]
    flaw: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`small`, `large`: scores, 0 or 1. `doubt`: by window, highest is handed on first. `flawed`: handed on in any case."""

    prompts: list[str]
    small: Floats
    large: Floats
    doubt: dict[int, Floats]
    flawed: int


def main() -> None:
    options = arguments(__doc__).parse_args()
    if not rows.DATA.is_dir():
        print(f"there are no public data sets in {rows.DATA}: own questions only", file=sys.stderr)
    figures = asyncio.run(qualities(quick=options.quick))
    report([*figures, *latency(quick=options.quick)], options.json)


async def qualities(*, quick: bool) -> list[Figure]:
    engine = LlamaCppEngine(slots=AT_ONCE)
    await engine.start()
    try:
        return [figure for case in cases() for figure in judged(case, await play(engine, case, quick=quick))]
    finally:
        await engine.close()


async def play(engine: Engine, case: Case, *, quick: bool) -> Outcome:
    questions, turn = case.some(quick=quick), asyncio.Semaphore(AT_ONCE)

    async def one(question: Question) -> Said:
        async with turn:
            return await ask(engine, question.prompt, max_tokens=case.max_tokens)

    said = await asyncio.gather(*map(one, questions))
    right = [float(case.judge(each.text, q.right)) for each, q in zip(said, questions, strict=True)]
    return Outcome(
        [question.prompt for question in questions],
        np.array(right),
        np.array([question.large for question in questions]),
        {window: np.array([doubt(each, at) for each in said]) for at, window in enumerate(WINDOWS)},
        sum(1 for each in said if each.flaw),
    )


def doubt(said: Said, at: int) -> float:
    """What is flawed is handed on first, what has no probabilities last."""
    confidence = said.confidence[at]
    return 1.0 if said.flaw else -1.0 if confidence is None else -confidence


async def ask(engine: Engine, prompt: str, *, max_tokens: int) -> Said:
    """Again if the engine could not be reached, as the queue does it."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(EngineUnavailable):
            return await attempt(engine, prompt, max_tokens=max_tokens)
    return await attempt(engine, prompt, max_tokens=max_tokens)


async def attempt(engine: Engine, prompt: str, *, max_tokens: int) -> Said:
    """As a worker runs a first pass, with a floor that nothing is below; one guard for each window."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}
    guards = [Guard(_lease(window, body), body) for window in WINDOWS]
    call, text, flaw = EngineCall(new_job_id("small"), CHAT, guards[0].asked(), stream=True), "", ""
    async with contextlib.aclosing(engine.generate(call)) as items:
        async for item in items:
            flaw = flaw or told(guards, item)
            text += "" if isinstance(item, Final) else _text(item.data)
    return Said(text, tuple(guard.confidence for guard in guards), flaw)


def told(guards: list[Guard], item: Delta | Final) -> str:
    """The flaw that they see."""
    try:
        for guard in guards:
            guard.end(item) if isinstance(item, Final) else guard.take(item)
    except Unfit as unfit:
        return unfit.why
    return ""


def _lease(window: int, body: dict[str, object]) -> Lease:
    return Lease(
        job_id=new_job_id("small"),
        token=1,
        service_class=ServiceClass.P0,
        endpoint=CHAT,
        stream=False,
        attached=False,
        attempt=1,
        run_s=1.0,
        deadline=NEVER,
        tenant="default",
        body=orjson.dumps(body),
        plan=str(Plan(window=window)),
    )


def _text(data: bytes) -> str:
    chunks = [orjson.loads(payload) for payload in data.split(b"\n")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def judged(case: Case, found: Outcome) -> list[Figure]:
    small, large, doubts = found.small, found.large, found.doubt[WINDOW]
    how = (
        f"SmolLM2-135M on llama.cpp, greedy, against {case.large}; {len(small)} questions; small {small.mean():.3f}"
        f" (guessing {case.chance:g}), large {large.mean():.3f}; {found.flawed} answers flawed"
    )
    figures = [Figure(f"cascade.small_accuracy.{case.name}", float(small.mean()), "share", case.chance, how)]
    right = int(small.sum())
    if not FEWEST <= right <= len(small) - FEWEST or large.mean() <= small.mean():
        return figures  # an order of one or two answers says nothing
    areas = {window: auroc(small < 1, each) for window, each in found.doubt.items()}
    by_window = ", ".join(f"first {window}: {area:.3f}" for window, area in areas.items())
    figures.append(
        Figure(
            f"cascade.auroc.{case.name}", areas[WINDOW], "area", 0.5, f"{how}; wrong answers, by {by_window}"
        )
    )
    return [*figures, *curves(case, found, how=how, doubts=doubts)]


def curves(case: Case, found: Outcome, *, how: str, doubts: Floats) -> list[Figure]:
    """Baseline: routing alone."""
    small, large = found.small, found.large
    cascade, chance = routed(small, large, doubts), by_chance(small, large)
    outcomes = rows.of_pair(rows.Pair(case.name, found.prompts, small.tolist(), large.tolist()))
    alone = [
        routed(small, large, unseen(outcomes, folds(len(small), seed=seed), least=2)) for seed in range(SEEDS)
    ]
    quality = QUALITY * float(large.mean())
    routing = float(np.mean([saved(curve.share_for(quality)) for curve in alone]))
    lot = saved(chance.share_for(quality))
    how += f"; verdict by the first {WINDOW} tokens; baseline routing alone, {FOLDS} folds x {SEEDS}"
    figures = [
        Figure(
            f"cascade.apgr.{case.name}",
            cascade.apgr,
            "area, chance is 0.5",
            float(np.mean([curve.apgr for curve in alone])),
            how,
        ),
        Figure(
            f"cascade.saved_at95.{case.name}_logprobs",
            saved(cascade.share_for(quality), cascade=True),
            "share of cost",
            routing,
            f"{how}; a small call costs 1/5.7 of a large one; by chance {lot:.3f}",
        ),
    ]
    at_floor = float((doubts > -FLOOR).mean())
    for what, share in (("at30", 0.3), ("at50", 0.5), ("at_floor", at_floor)):
        at = round(share * len(small))
        beside = float(np.mean([curve.quality[at] for curve in alone]))
        told = f"{how}; random mix {chance.quality[at]:.3f}"
        told += f"; below the usual floor of {FLOOR:g}: {share:.0%}" if what == "at_floor" else ""
        name = f"cascade.quality_{what}.{case.name}"
        figures.append(Figure(name, float(cascade.quality[at]), "mean score", beside, told))
    return figures


if __name__ == "__main__":
    main()
