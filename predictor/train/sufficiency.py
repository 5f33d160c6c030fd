"""Learns how likely the small model of a pair suffices: `predictor/sufficiency.py` is what reads the result.

Ridge regression of what the large model gains on a prompt (its score less the small one's) on the features and on the
words, whose rows are normalised; then a logistic of that, fitted on guesses by models that have not seen the prompt.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array, hstack
from scipy.sparse.linalg import lsqr

from predictor.features import FEATURES, VERSION, WORDS
from predictor.sufficiency import MOST_Z, Curve, Model

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
WORD_DAMP, FEATURE_DAMP = 4.0, 20.0
LEAST, LONGEST = 3, 24  # prompts that must have a word; its bytes
ROUNDS = 60
STEEP_DAMP = 1e-6  # where the guesses part the prompts without a mistake, the slope would have no end
FOLDS = 5
CURVE_POINTS = 101


# Sums over a lexicon that is learned for other ends, and anew: this model has words of its own.
USED = np.array([name not in WORDS for name in FEATURES])


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Prompts and how both models did on them, 0 to 1 (a mean over several pairs has less noise than one pair).

    `x`: (n, features). `suffices`: how often the small one was no worse. `weight`: of each prompt.
    """

    x: Floats
    words: Sequence[frozenset[bytes]]
    small: Floats
    large: Floats
    suffices: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.small)

    @property
    def gain(self) -> Floats:
        return self.large - self.small


@dataclass(frozen=True, slots=True)
class Linear:
    """As `Model` has it, before the logistic."""

    bias: float
    weights: Floats
    mean: Floats
    scale: Floats
    words: dict[bytes, tuple[float, float]]

    def guess(self, outcomes: Outcomes, chosen: Indices) -> Floats:
        """The large model's gain."""
        z = _standard(_logs(outcomes.x[chosen]), mean=self.mean, scale=self.scale)
        said = np.array([self._said(outcomes.words[i]) for i in chosen])
        return np.asarray(self.bias + z @ self.weights + said, float)

    def _said(self, words: frozenset[bytes]) -> float:
        found = [self.words[word] for word in words if word in self.words]
        return sum(w for w, _ in found) / math.sqrt(sum(s for _, s in found)) if found else 0.0


def fit_linear(outcomes: Outcomes, chosen: Indices, *, least: int = LEAST) -> Linear:
    """On the chosen prompts only."""
    logs, weight = _logs(outcomes.x[chosen]), outcomes.weight[chosen]
    mean, scale = logs.mean(axis=0), logs.std(axis=0)
    scale = np.where((scale > 1e-6) & USED, scale, 0.0)
    words = [outcomes.words[i] for i in chosen]
    counts = Counter(word for said in words for word in said if len(word) <= LONGEST)
    names = {
        word: at for at, word in enumerate(sorted(w for w, n in counts.items() if n >= least and _clean(w)))
    }
    rarity = np.array([math.log(len(chosen) / counts[word]) + 1e-3 for word in names])
    said = _matrix(words, names, rarity=rarity)
    table = hstack(
        [csr_array(_standard(logs, mean=mean, scale=scale) / FEATURE_DAMP), said / WORD_DAMP]
    ).tocsr()
    root, target = np.sqrt(weight), outcomes.gain[chosen]
    middle = float((weight * target).sum() / weight.sum())
    found = lsqr(table * root[:, None], (target - middle) * root, damp=1.0, iter_lim=ROUNDS)[0]
    features, own = found[: len(FEATURES)] / FEATURE_DAMP, found[len(FEATURES) :] / WORD_DAMP
    kept = {word: (float(own[at] * rarity[at]), float(rarity[at] ** 2)) for word, at in names.items()}
    return Linear(middle, features, mean, scale, kept)


def folds(n: int, *, seed: int = 0) -> Indices:
    """By chance, of equal size."""
    return np.random.default_rng(seed).permutation(n) % FOLDS


def unseen(outcomes: Outcomes, fold: Indices, *, least: int = LEAST) -> Floats:
    """Each prompt's guess by a model that was fitted on the other folds."""
    guesses = np.zeros(len(outcomes))
    for each in range(FOLDS):
        held = np.flatnonzero(fold == each)
        guesses[held] = fit_linear(outcomes, np.flatnonzero(fold != each), least=least).guess(outcomes, held)
    return guesses


def fit(outcomes: Outcomes, *, version: str, least: int = LEAST) -> Model:
    """Fitted on all of it; its logistic and its curve are of unseen guesses."""
    guesses = unseen(outcomes, folds(len(outcomes)), least=least)
    linear = fit_linear(outcomes, np.arange(len(outcomes)), least=least)
    intercept, slope = logistic(guesses, outcomes.suffices, weight=outcomes.weight)
    chances = 1.0 / (1.0 + np.exp(-np.clip(intercept + slope * guesses, -30.0, 30.0)))
    return Model(
        version=version,
        bias=linear.bias,
        weights=tuple(linear.weights),
        mean=tuple(linear.mean),
        scale=tuple(linear.scale),
        words=linear.words,
        logistic=(intercept, slope),
        curve=curve(chances, outcomes),
    )


def logistic(guesses: Floats, suffices: Floats, *, weight: Floats) -> tuple[float, float]:
    """Intercept and slope of the weighted likelihood's maximum."""

    def loss(at: Floats) -> float:
        x = at[0] + at[1] * guesses
        unlikely = (weight * (np.logaddexp(0.0, x) - suffices * x)).sum() / weight.sum()
        return float(unlikely + STEEP_DAMP * at[1] ** 2)

    found = minimize(loss, np.array([1.0, -1.0]), method="Nelder-Mead").x
    return float(found[0]), float(min(found[1], 0.0))


def curve(chances: Floats, outcomes: Outcomes) -> Curve:
    """At quantiles of the chances, weighted."""
    order = np.argsort(chances)
    weight, gain = outcomes.weight[order], (outcomes.weight * outcomes.gain)[order]
    share, kept = np.cumsum(weight) / weight.sum(), np.cumsum(gain) / gain.sum()
    at = np.unique(np.linspace(0, len(order) - 1, CURVE_POINTS).astype(int))
    thresholds = np.nextafter(chances[order][at], 1.0)
    return Curve((0.0, *thresholds), (0.0, *share[at]), (0.0, *np.maximum.accumulate(kept[at])))


def document(model: Model, *, sources: Sequence[dict[str, Any]], least: float = 2e-4) -> dict[str, Any]:
    """The model's file. Words that weigh less than `least` are left out, their part of the length with them."""
    kept = {w.decode(): (round(x, 5), round(s, 3)) for w, (x, s) in model.words.items() if abs(x) >= least}
    return {
        "version": model.version,
        "features_version": VERSION,
        "features": list(FEATURES),
        "bias": round(model.bias, 6),
        **{name: [round(float(v), 6) for v in getattr(model, name)] for name in ("weights", "mean", "scale")},
        "logistic": [round(v, 6) for v in model.logistic],
        "curve": [
            [round(float(v), 5) for v in column]
            for column in (model.curve.thresholds, model.curve.share_large, model.curve.quality)
        ],
        "trained_on": list(sources),
        "words": kept,
    }


def _logs(x: Floats) -> Floats:
    return np.sign(x) * np.log1p(np.abs(x))


def _standard(logs: Floats, *, mean: Floats, scale: Floats) -> Floats:
    z = np.where(scale > 0, (logs - mean) / np.where(scale > 0, scale, 1.0), 0.0)
    return np.clip(z, -MOST_Z, MOST_Z)


def _matrix(words: Sequence[frozenset[bytes]], names: dict[bytes, int], *, rarity: Floats) -> Any:
    """A row a prompt, of length 1."""
    rows, columns, values = [], [], []
    for row, said in enumerate(words):
        own = [names[word] for word in said if word in names]
        if own:
            rows += [row] * len(own)
            columns += own
            values += list(rarity[own] / math.sqrt(float((rarity[own] ** 2).sum())))
    return csr_array((values, (rows, columns)), shape=(len(words), len(names)))


def _clean(word: bytes) -> bool:
    try:
        word.decode()
    except UnicodeDecodeError:
        return False
    return True
