"""The figures of `predictor.py`: forecasts on public data, each beside a constant and, where it is known, the ceiling.

Every set is split by prompt, conversation or time (60 % to train, 20 % to stop and calibrate, 20 % to test); models are
trained here on the first part and thrown away. What ships is trained by `predictor_train.py` on fewer sets.
"""

import sys
from dataclasses import dataclass, replace

import numpy as np
import predictor_tools
from figures import Figure, arguments, report
from predictor_cases import CASES, by_group
from predictor_cost import BESIDE, GPU, gpu_s, run_s
from predictor_latency import latency
from predictor_rows import DATA, Case, with_words

from predictor.features import INDEX
from predictor.lexicon import shipped
from predictor.model_set import SHIPPED
from predictor.train import scores
from predictor.train.candidate import load_fitted
from predictor.train.fit import Guesses, fit_lengths, guess, split_by_time
from predictor.train.rows import Floats, Rows
from predictor.train.word_weights import score

NOT_SHIPPED = ("sharegpt", "bfcl")  # sets that may be evaluated on only


@dataclass(frozen=True, slots=True)
class Tested:
    """Forecasts of a case's test part, and the constant that its training part suggests."""

    case: Case
    rows: Rows
    prompts: Floats
    guesses: Guesses
    median: float
    mean: float

    @property
    def prompt_guesses(self) -> Floats:
        """Prompt tokens as the features have them."""
        return self.rows.x[:, INDEX["prompt_tokens"]]


def main() -> None:
    options = arguments(__doc__).parse_args()
    figures = latency(quick=options.quick)
    if DATA.is_dir():
        for name, made in CASES.items():
            case = made(options.quick)
            found = tested(case)
            figures += [*costs(found), *lengths(found)]
            if name in NOT_SHIPPED:
                figures += out_of_the_box(case)
            print(f"{name}: {len(case.rows)} requests", file=sys.stderr)
        figures += [*predictor_tools.bfcl(), *predictor_tools.metatool()]
    else:
        print(f"skipped all but the latency: there are no public data sets in {DATA}", file=sys.stderr)
    report(figures, options.json)


def tested(case: Case) -> Tested:
    """Trains on the case's training part."""
    parts = split_by_time(len(case.rows)) if case.ordered else by_group(case.rows)
    case = with_words(case, parts)
    fitted = fit_lengths(case.rows, parts)
    seen, rows = case.rows.output[parts.train], case.rows.take(parts.test)
    return Tested(
        case,
        rows,
        case.prompts[parts.test],
        guess(fitted, rows),
        median=float(np.median(seen)),
        mean=float(seen.mean()),
    )


def out_of_the_box(case: Case) -> list[Figure]:
    """By the models that ship, which have learned nothing from this set: what a new installation has on its first day."""
    column, weights = INDEX["words_length"], shipped().length
    x = case.rows.x.copy()
    x[:, column] = [score(words, weights) for words in case.words]
    rows = replace(case.rows, x=x).take(by_group(case.rows).test)
    _, fitted = load_fitted(SHIPPED)
    found, actual = guess(fitted, rows), rows.output
    setting = f"{len(rows)} requests; the models that ship, not trained on this set"
    constant = np.full(len(rows), np.median(actual))
    return [
        _tokens(case.name, "shipped_tau", scores.tau(actual, found.p50), 0.0, setting),
        _tokens(case.name, "shipped_p90_cover", scores.cover(actual, found.p90), 0.9, setting),
        _tokens(
            case.name, "shipped_mae", scores.mae(actual, found.p50), scores.mae(actual, constant), setting
        ),
    ]


def costs(found: Tested) -> list[Figure]:
    """Of the whole request, prompt included: the prompt is mostly known, the output is not."""
    name, rows, prompts, guesses = found.case.name, found.rows, found.prompts, found.guesses
    where = f"{len(rows)} requests not trained on, {GPU}, {BESIDE} sequences"
    constant = np.full(len(rows), found.median)
    made = []
    for figure, cost, what in (
        ("within20", gpu_s, "GPU seconds"),
        ("within20_run", run_s, "seconds from claim to last token"),
    ):
        actual = cost(prompts, rows.output)
        share = scores.within(actual, cost(found.prompt_guesses, guesses.p50))
        base = scores.within(actual, cost(prompts, constant))
        setting = f"{what}; {where}; baseline: prompt known, output the median; ceiling: {found.case.ceiling}"
        made.append(
            Figure(f"predict.{figure}.{name}", round(share, 4), "share of requests", round(base, 4), setting)
        )
    actual = gpu_s(prompts, rows.output)
    means = gpu_s(found.prompt_guesses, guesses.mean)
    setting = (
        f"GPU seconds of 100 requests drawn by chance, median of 400 draws; {where}; over all: "
        f"{scores.bias(actual, means):+.4f}; baseline: output the mean"
    )
    base = scores.sum_error(actual, gpu_s(prompts, np.full(len(rows), found.mean)))
    error = scores.sum_error(actual, means)
    return [
        *made,
        Figure(f"predict.sum_error.{name}", round(error, 4), "of the sum", round(base, 4), setting),
    ]


def lengths(found: Tested) -> list[Figure]:
    """Of the output alone."""
    name, rows, guesses = found.case.name, found.rows, found.guesses
    actual, n = rows.output, f"{len(found.rows)} requests not trained on"
    constant = np.full(len(rows), found.median)
    ceiling = f"{n}; ceiling: {found.case.ceiling}"
    known = _has_history(rows)
    made = [
        _tokens(
            name,
            "within20_tokens",
            scores.within(actual, guesses.p50),
            scores.within(actual, constant),
            ceiling,
        ),
        _tokens(
            name, "p90_cover", scores.cover(actual, guesses.p90), 0.9, f"{n}; baseline: what P90 promises"
        ),
        _tokens(name, "tau", scores.tau(actual, guesses.p50), 0.0, ceiling),
        _tokens(name, "mae", scores.mae(actual, guesses.p50), scores.mae(actual, constant), f"{n}; tokens"),
    ]
    if 0 < known.mean() < 1:
        tau = scores.tau(actual[known], guesses.p50[known])
        setting = (
            f"{known.sum()} of {n}: those after two answers of the conversation, or of a template seen before"
        )
        made.append(_tokens(name, "tau_with_history", tau, 0.0, setting))
    return made


def _tokens(name: str, figure: str, value: float, base: float, setting: str) -> Figure:
    unit = {"mae": "tokens", "tau": "Kendall's tau-b", "tau_with_history": "Kendall's tau-b"}.get(
        figure, "share"
    )
    return Figure(f"predict.{figure}.{name}", round(value, 4), unit, round(base, 4), setting)


def _has_history(rows: Rows) -> np.ndarray:  # type: ignore[type-arg]
    return (rows.x[:, INDEX["answers"]] >= 2) | (rows.x[:, INDEX["template_count"]] >= 1)
