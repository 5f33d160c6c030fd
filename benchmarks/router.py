"""Routers and cascades on public outcomes: RouteLLM's MMLU, GSM8K and MT-Bench, and Llama-3 8B/70B on zeroeval.

What is measured is the classifier that ships (features and words of the prompt, no embeddings), learned on other prompts
of the same set: five folds, each judged by what has seen the other four. So these are routers that have learned from a
pair's own outcomes, as feedback teaches them; RouteLLM's published ones had learned from battles in the Arena and from
similar benchmarks. MT-Bench has too few prompts: its router has learned from AlpacaEval, and the one that ships is beside it.

The cascade has the small model answer first. Public outcomes have no token probabilities, so its verdict here falls by
the prompt and by how long the small model's answer was; the product's verdict by probabilities is measured by `cascade.py`.
"""

import sys
from dataclasses import dataclass

import numpy as np
import router_rows as rows
from figures import Figure, arguments, report
from router_scores import auroc, best_cut, by_chance, routed, saved

from predictor.router import load_or_rule
from predictor.train.sufficiency import FOLDS, Floats, Outcomes, fit_linear, folds, unseen

SEEDS, QUICK_SEEDS = 5, 1
QUALITY = 0.95
LENGTH_DAMP = 1.0
# RouteLLM's best published routers: APGR, CPT(50), CPT(80)
PUBLISHED = {"mmlu": (0.603, 0.354, 0.716), "gsm8k": (0.622, 0.336, 0.633), "mt_bench": (0.802, 0.134, 0.313)}
ZERO = ("gsm", "crux", "math-l5")


@dataclass(frozen=True, slots=True)
class Judged:
    """One set, and what the router says of each prompt that it has not seen, once for every seed."""

    name: str
    outcomes: Outcomes
    wants_large: list[Floats]
    how: str


def main() -> None:
    options = arguments(__doc__).parse_args()
    if not rows.DATA.is_dir():
        print(f"skipped: there are no public data sets in {rows.DATA}", file=sys.stderr)
        return
    seeds = QUICK_SEEDS if options.quick else SEEDS
    figures: list[Figure] = []
    for pair in (rows.routellm_gsm8k(), rows.routellm_mmlu()):
        case = folded(pair, seeds=1 if pair.name == "mmlu" else seeds)
        figures += [*beside_published(case), *as_classifier(case)]
    figures += mt_bench()
    for task in ZERO:
        case = folded(rows.zeroeval(task), seeds=seeds)
        figures += [*plain(case), *as_classifier(case), *cascade(case, task)]
    report(figures, options.json)


def folded(pair: rows.Pair, *, seeds: int) -> Judged:
    outcomes = rows.of_pair(pair)
    wants = [unseen(outcomes, folds(len(outcomes), seed=seed)) for seed in range(seeds)]
    return Judged(pair.name, outcomes, wants, f"{FOLDS} folds x {seeds} of {len(outcomes)} prompts")


def beside_published(case: Judged) -> list[Figure]:
    """Baseline: the best router that RouteLLM published for this set."""
    measures = zip(("apgr", "cpt50", "cpt80"), three(case), PUBLISHED[case.name], strict=True)
    units = {"apgr": "area, chance is 0.5", "cpt50": "share of calls", "cpt80": "share of calls"}
    how = f"{case.how}; Mixtral 8x7B against GPT-4; baseline RouteLLM's best"
    return [
        Figure(f"router.{name}.{case.name}", value, units[name], known, how)
        for name, value, known in measures
    ]


def plain(case: Judged) -> list[Figure]:
    """Baseline: by chance."""
    chance, how = by_chance(case.outcomes.small, case.outcomes.large), f"{case.how}; Llama-3 8B against 70B"
    beside = (chance.apgr, chance.cpt(0.5), chance.cpt(0.8))
    named = zip(("apgr", "cpt50", "cpt80"), three(case), beside, strict=True)
    return [
        Figure(f"router.{name}.{case.name}", value, "share", known, f"{how}; baseline by chance")
        for name, value, known in named
    ]


def three(case: Judged) -> tuple[float, float, float]:
    """APGR, CPT(50) and CPT(80), means over the seeds."""
    curves = [routed(case.outcomes.small, case.outcomes.large, wants) for wants in case.wants_large]
    table = np.array([(curve.apgr, curve.cpt(0.5), curve.cpt(0.8)) for curve in curves]).mean(axis=0)
    return float(table[0]), float(table[1]), float(table[2])


def as_classifier(case: Judged) -> list[Figure]:
    """Does a prompt need the large model? And what is saved at QUALITY of its quality."""
    small, large = case.outcomes.small, case.outcomes.large
    needs = large > small
    always_small = float(1.0 - needs.mean())
    right = float(np.mean([accuracy(needs, wants) for wants in case.wants_large]))
    area = float(np.mean([auroc(needs, wants) for wants in case.wants_large]))
    quality = QUALITY * float(large.mean())
    shares = [routed(small, large, wants).share_for(quality) for wants in case.wants_large]
    lot = by_chance(small, large).share_for(quality)
    how = f"{case.how}; {1 - always_small:.1%} need the large one"
    return [
        Figure(f"router.accuracy.{case.name}", right, "share", always_small, f"{how}; baseline always small"),
        Figure(f"router.auroc.{case.name}", area, "area", 0.5, how),
        Figure(
            f"router.saved_at95.{case.name}",
            saved(float(np.mean(shares))),
            "share of cost",
            saved(lot),
            f"{how}; a small call costs 1/5.7 of a large one; baseline by chance",
        ),
    ]


def accuracy(needs: np.ndarray, wants: Floats) -> float:
    """Each fifth is cut where the others are cut best."""
    fold, right = folds(len(needs), seed=7), 0
    for each in range(FOLDS):
        held = fold == each
        cut = best_cut(needs[~held], wants[~held])
        right += int(((wants[held] >= cut) == needs[held]).sum())
    return right / len(needs)


def mt_bench() -> list[Figure]:
    """Learned elsewhere: from AlpacaEval; and by the file that ships, which has seen no MT-Bench either."""
    test = rows.of_pair(rows.routellm_mt_bench())
    chat = rows.of_many(*rows.chat_scores(), small=rows.SMALL_CHAT, large=rows.LARGE_CHAT)
    learned = fit_linear(chat, np.arange(len(chat))).guess(test, np.arange(len(test)))
    case = Judged("mt_bench", test, [learned], f"{len(test)} prompts, learned from {len(chat)} of AlpacaEval")
    model, figures = load_or_rule(), beside_published(case)
    if model.version == "rule":
        return figures
    shipped = np.array([model.gain(_Known(tuple(x), w)) for x, w in zip(test.x, test.words, strict=True)])  # type: ignore[union-attr, arg-type]
    curve = routed(test.small, test.large, shipped)
    how = f"{len(test)} prompts; the model that ships; baseline the router learned from AlpacaEval"
    return [*figures, Figure("router.apgr.mt_bench_shipped", curve.apgr, "area", three(case)[0], how)]


@dataclass(frozen=True, slots=True)
class _Known:
    """Features as `Model.gain` reads them."""

    values: tuple[float, ...]
    words: frozenset[bytes]


def cascade(case: Judged, task: str) -> list[Figure]:
    """Small first, then large for what looks wrong. Baseline: routing alone."""
    small, large = case.outcomes.small, case.outcomes.large
    lengths = small_lengths(task)
    quality = QUALITY * float(large.mean())
    doubts = [doubt(case.outcomes, wants, lengths=lengths) for wants in case.wants_large]
    curves = [routed(small, large, each) for each in doubts]
    alone = [routed(small, large, wants) for wants in case.wants_large]
    savings = float(np.mean([saved(curve.share_for(quality), cascade=True) for curve in curves]))
    routing = float(np.mean([saved(curve.share_for(quality)) for curve in alone]))
    how = f"{case.how}; verdict by the prompt and the small answer's length"
    figures = [
        Figure(
            f"cascade.saved_at95.{case.name}", savings, "share of cost", routing, how + "; baseline routing"
        )
    ]
    for share in (0.1, 0.2, 0.3, 0.5):
        at = round(share * len(small))
        value, beside = (float(np.mean([c.quality[at] for c in some])) for some in (curves, alone))
        name = f"cascade.quality.{case.name}.large{round(100 * share)}"
        ends = f"always small {small.mean():.3f}, always large {large.mean():.3f}"
        figures.append(Figure(name, value, "mean score", beside, f"{how}; {ends}; baseline routing"))
    return figures


def doubt(outcomes: Outcomes, wants: Floats, *, lengths: Floats) -> Floats:
    """The large model's expected gain given the router's guess and the length of the small answer; unseen folds."""
    fold, found = folds(len(wants), seed=11), np.zeros(len(wants))
    table = np.stack([wants, np.log1p(lengths), np.log1p(lengths) ** 2], axis=1)
    for each in range(FOLDS):
        seen = fold != each
        mean, scale = table[seen].mean(axis=0), table[seen].std(axis=0) + 1e-9
        z, gain = (table - mean) / scale, outcomes.gain[seen]
        inner = z[seen].T @ z[seen] + LENGTH_DAMP * np.eye(z.shape[1])
        found[~seen] = z[~seen] @ np.linalg.solve(inner, z[seen].T @ (gain - gain.mean()))
    return found


def small_lengths(task: str) -> Floats:
    """Output tokens of the small model, in the order of `rows.zeroeval`."""
    known = rows.zero_lengths(task)
    _, scores = rows.zero_scores(task)
    names = [name for name, by_model in scores.items() if all(model in by_model for model in rows.LLAMA)]
    return np.array([known[name] for name in names], float)


if __name__ == "__main__":
    main()
