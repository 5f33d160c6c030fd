"""How good forecasts are. Every function takes arrays of n requests and returns one number. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

Array = NDArray[Any]
SUM_OF = 100


def within(actual: Array, predicted: Array, *, share: float = 0.2) -> float:
    """Share of requests whose forecast is off by at most `share` of the actual value."""
    return float(np.mean(np.abs(predicted - actual) <= share * actual))


def sum_error(actual: Array, predicted: Array, *, seed: int = 0) -> float:
    """Median, over sums of SUM_OF requests drawn by chance, of the sum's error as a share of it."""
    draws = _draws(len(actual), seed)
    sums, guesses = actual[draws].sum(axis=1), predicted[draws].sum(axis=1)
    return float(np.median(np.abs(guesses / sums - 1)))


def bias(actual: Array, predicted: Array) -> float:
    """Of the sum over all, as a share of it; above 0: too much was forecast."""
    return float(predicted.sum() / actual.sum() - 1)


def cover(actual: Array, upper: Array) -> float:
    """Share of requests that stayed within their upper forecast."""
    return float(np.mean(actual <= upper))


def tau(actual: Array, predicted: Array) -> float:
    """Kendall's tau-b: 1 if the order is right throughout, 0 by chance."""
    found = kendalltau(actual, predicted).statistic
    return 0.0 if np.isnan(found) else float(found)


def mae(actual: Array, predicted: Array) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(actual - predicted)))


def auroc(label: Array, score: Array) -> float:
    """Chance that a request with the label scores above one without; 0.5 by guessing. Both must occur."""
    positive = label > 0.5
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        raise ValueError("AUROC wants both kinds of requests")
    ranks = rankdata(score)
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def _draws(n: int, seed: int) -> Array:
    """Indices (400, SUM_OF)."""
    return np.random.default_rng(seed).integers(0, n, size=(400, SUM_OF))
