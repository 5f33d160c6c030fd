"""Fits and calibrates the models. One split by groups: trained on one part, stopped and calibrated on the second, scored
on the third, so that no figure comes from requests that anything was chosen by."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from predictor.features import FEATURES, INDEX
from predictor.length import ANCHORS, Calibration, anchor, start
from predictor.train import scores
from predictor.train.rows import Floats, Rows

MOST_TREES = 300
MIN_ROWS = 200  # fewer teach nothing that a median does not say
PARAMETERS: Mapping[str, Any] = {
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 30,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "max_bin": 127,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 11,
    "verbosity": -1,
}
ANCHORED = (1.0, 0.5, 0.0)
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9}
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {
    **{name: {"objective": "quantile", "alpha": quantile} for name, quantile in QUANTILES.items()},
    "mean": {"objective": "poisson"},
    "tool": {"objective": "binary"},
}


@dataclass(frozen=True, slots=True)
class Split:
    """Masks over the same rows."""

    train: NDArray[np.bool_]
    calibrate: NDArray[np.bool_]
    test: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Models by name, and how the length models are to be corrected."""

    models: dict[str, "lgb.Booster"]
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True, slots=True)
class Guesses:
    """Output tokens of n requests, as `predictor/length.py` would say them of one."""

    p50: Floats
    p90: Floats
    mean: Floats


def split(groups: NDArray[np.str_], *, seed: int = 0, parts: tuple[float, float] = (0.6, 0.8)) -> Split:
    """By chance, whole groups at a time. `parts`: where the second and the third part begin."""
    _, place = np.unique(groups, return_inverse=True)
    chance = np.random.default_rng(seed).random(place.max() + 1)[place]
    return _split(chance, parts)


def split_by_time(n: int, *, parts: tuple[float, float] = (0.6, 0.8)) -> Split:
    """The newest requests are the test; rows are in the order of time."""
    return _split(np.arange(n) / n, parts)


def fit_lengths(rows: Rows, parts: Split, *, anchored: Sequence[float] = ANCHORED) -> Fitted:
    """`anchored`: shares of the anchor to try (`Calibration.anchored`); the one with the best P50 on the second part is
    taken. Models for pools that they have not seen want 1. Raises ValueError if there are too few rows."""
    train, held = rows.take(parts.train), rows.take(parts.calibrate)
    if len(train) < MIN_ROWS or not len(held):
        raise ValueError(f"{len(train)} requests to train on; at least {MIN_ROWS} are wanted")
    tried = [(share, _length_booster("p50", (train, held), share=share)) for share in anchored]
    share, p50 = min(tried, key=lambda pair: _off(pair[1], held, share=pair[0]))
    models = {"p50": p50} | {
        name: _length_booster(name, (train, held), share=share) for name in ("p90", "mean")
    }
    logs, usual = np.log1p(held.output), anchors(held.x, share)
    mean = _predict(models["mean"], held.x) * np.exp(usual)
    shifts = {
        name: _quantile(logs - usual - _predict(models[name], held.x), quantile, weight=held.weight)
        for name, quantile in QUANTILES.items()
    }
    factor = float((held.weight * held.output).sum() / (held.weight * mean).sum())
    return Fitted(models, Calibration(shifts["p50"], shifts["p90"], factor, anchored=share))


def anchors(x: Floats, share: float) -> Floats:
    """`length.start` of each row."""
    return np.array([start(anchor(*known), share) for known in x[:, ANCHORS].tolist()])


def _length_booster(name: str, both: tuple[Rows, Rows], *, share: float) -> "lgb.Booster":
    """Trees of a quantile find nothing to split while all answers lie on one side of where they start: so they start in
    the midst of them. Where that is need not be kept, as the calibration finds it again."""
    train, held = both
    usual = anchors(train.x, share), anchors(held.x, share)
    if name in QUANTILES:
        labels = np.log1p(train.output), np.log1p(held.output)
        midst = float(np.quantile(labels[0] - usual[0], QUANTILES[name]))
    else:
        labels = train.output, held.output
        midst = math.log(float(train.output.sum() + 1) / float(np.exp(usual[0]).sum()))
    return booster(name, train, held=held, labels=labels, usual=(usual[0] + midst, usual[1] + midst))


def _off(p50: "lgb.Booster", held: Rows, *, share: float) -> float:
    """Mean distance of the logarithms, once calibrated."""
    found = np.log1p(held.output) - anchors(held.x, share) - _predict(p50, held.x)
    return float(np.average(np.abs(found - _quantile(found, 0.5, weight=held.weight)), weights=held.weight))


def fit_tool(rows: Rows, parts: Split) -> "lgb.Booster":
    """Rows without the label must have been left out. Raises ValueError if there are too few."""
    train, held = rows.take(parts.train), rows.take(parts.calibrate)
    if len(train) < MIN_ROWS or not len(held):
        raise ValueError(f"{len(train)} requests to train on; at least {MIN_ROWS} are wanted")
    return booster("tool", train, held=held, labels=(train.tool, held.tool))


def booster(
    name: str,
    train: Rows,
    *,
    held: Rows,
    labels: tuple[Floats, Floats],
    usual: tuple[Floats, Floats] | None = None,
) -> "lgb.Booster":
    """Stops when `held` no longer gets better. `usual`: what the trees start from, and do not say again."""
    names, start = list(FEATURES), usual or (None, None)
    data = lgb.Dataset(train.x, labels[0], weight=train.weight, init_score=start[0], feature_name=names)
    check = lgb.Dataset(
        held.x, labels[1], weight=held.weight, init_score=start[1], feature_name=names, reference=data
    )
    return lgb.train(
        {**PARAMETERS, **OBJECTIVES[name]},
        data,
        num_boost_round=MOST_TREES,
        valid_sets=[check],
        callbacks=[lgb.early_stopping(30, verbose=False)],
    )


def guess(fitted: Fitted, rows: Rows) -> Guesses:
    """For all rows at once; the caller's `max_tokens` is kept as a request's forecast keeps it."""
    most = rows.x[:, INDEX["limit_tokens"]]
    most = np.where(most > 0, most, np.inf)
    mine = fitted.calibration
    raw = {name: _predict(fitted.models[name], rows.x) for name in ("p50", "p90", "mean")}
    usual = anchors(rows.x, mine.anchored)
    p50 = np.clip(np.expm1(usual + raw["p50"] + mine.p50_shift), 1.0, most)
    p90 = np.clip(np.expm1(usual + raw["p90"] + mine.p90_shift), p50, most)
    return Guesses(p50, p90, np.clip(np.exp(usual) * raw["mean"] * mine.mean_factor, 1.0, most))


def judged(fitted: Fitted, rows: Rows) -> dict[str, float]:
    """Scores of the length models on rows that they have not seen."""
    found, actual = guess(fitted, rows), rows.output
    return {
        "requests": float(len(rows)),
        "within20": scores.within(actual, found.p50),
        "tau": scores.tau(actual, found.p50),
        "mae": scores.mae(actual, found.p50),
        "mae_of_median": scores.mae(actual, np.full(len(actual), np.median(actual))),
        "p90_cover": scores.cover(actual, found.p90),
        "sum_error": scores.sum_error(actual, found.mean),
        "bias": scores.bias(actual, found.mean),
    }


def _split(chance: Floats, parts: tuple[float, float]) -> Split:
    return Split(chance < parts[0], (chance >= parts[0]) & (chance < parts[1]), chance >= parts[1])


def _predict(model: "lgb.Booster", x: Floats) -> Floats:
    return np.asarray(model.predict(x, num_threads=1), float)


def _quantile(values: Floats, share: float, *, weight: Floats) -> float:
    order = np.argsort(values)
    passed = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(passed, share * passed[-1])])
