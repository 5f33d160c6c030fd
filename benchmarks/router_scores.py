"""How good a router is, as RouteLLM measures it: quality over the share of calls that go to the large model. Pure.

Source of APGR and CPT: Ong et al., RouteLLM (2024), section 3. Quality is the mean score of whichever model answers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[Any]
COST_SMALL = 1 / 5.7  # of a call of the large model: Llama-3.1 8B against 70B on one H200, tokens per second


@dataclass(frozen=True, slots=True)
class Curve:
    """By rising share of the large model. `kept`: of what it gains over the small one."""

    share: Floats
    quality: Floats

    @property
    def kept(self) -> Floats:
        return (self.quality - self.quality[0]) / (self.quality[-1] - self.quality[0])

    @property
    def apgr(self) -> float:
        """The area under `kept`; 0.5 by chance."""
        return float(np.trapezoid(self.kept, self.share))

    def cpt(self, kept: float) -> float:
        """The least share of calls that keeps so much of the gain."""
        return float(self.share[np.argmax(self.kept >= kept)])

    def share_for(self, quality: float) -> float:
        """The least share with that quality. The large model's own has to be at least that."""
        return float(self.share[np.argmax(self.quality >= quality)])


def routed(small: Floats, large: Floats, wants_large: Floats) -> Curve:
    """Prompts with the highest `wants_large` go to the large model first."""
    order = np.argsort(-wants_large, kind="stable")
    n, gained = len(order), np.cumsum((large - small)[order])
    quality = np.concatenate([[small.mean()], small.mean() + gained / n])
    return Curve(np.arange(n + 1) / n, quality)


def by_chance(small: Floats, large: Floats) -> Curve:
    """The expectation of routing by lot."""
    share = np.linspace(0.0, 1.0, len(small) + 1)
    return Curve(share, small.mean() + share * (large.mean() - small.mean()))


def saved(share: float, *, cascade: bool = False) -> float:
    """Of the cost of sending everything to the large model. A cascade pays for the small one in every case."""
    return 1.0 - share - (1.0 if cascade else 1.0 - share) * COST_SMALL


def auroc(positive: NDArray[np.bool_], score: Floats) -> float:
    """That a positive has a higher score than a negative; ties count half."""
    ranks, p = rankdata(score), int(positive.sum())
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * (len(score) - p)))


def best_cut(positive: NDArray[np.bool_], score: Floats) -> float:
    """The score from which calling a prompt positive is right most often. +inf: none is."""
    order = np.argsort(-score)
    right = np.concatenate([[0], np.cumsum(np.where(positive[order], 1, -1))])
    at = int(np.argmax(right))
    return float("inf") if at == 0 else float(score[order][at - 1])
