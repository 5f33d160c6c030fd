"""From what the length models say to output tokens: calibrated, in order, and within what the caller allows. Pure.

The models say how far an answer is from an anchor, the usual length of what is known to be like it. So they hold for a
pool whose answers are ten times as long as any they have seen. P50 and P90 are trained on the logarithm of 1 + tokens
(quantiles survive it), the mean on tokens (a Poisson objective keeps sums unbiased, which a median cannot).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from predictor.features import INDEX, Features

MOST_TOKENS = 131_072.0
MOST_LOG = math.log1p(MOST_TOKENS)
USUAL_LOG = 5.2  # 180 tokens: what a chat's answer has where nothing is known
POOL_DOUBT, TEMPLATE_DOUBT, ANSWER_DOUBT = 5.0, 3.0, 4.0  # as many requests of the less particular kind
ANCHORS = tuple(
    INDEX[name]
    for name in (
        *("pool_count", "pool_mean_log", "template_count", "template_mean_log"),
        *("answers", "mean_answer_tokens"),
    )
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured on held-out requests; a pool's own outcomes may move it. Neutral by default."""

    p50_shift: float = 0.0  # added to the logarithm
    p90_shift: float = 0.0
    mean_factor: float = 1.0
    anchored: float = 1.0  # how far the models start from the anchor (1) or from USUAL_LOG (0)


class Lengths(NamedTuple):
    """Output tokens of all choices together. `mean` is for sums, `p50` for one request, `p90` for reservations."""

    p50: float
    p90: float
    mean: float


class Raw(NamedTuple):
    """What the three models say for one request, beside its `anchor`."""

    p50_log: float  # added to the anchor
    p90_log: float
    mean: float  # times e to the anchor


NEUTRAL = Calibration()


def lengths(raw: Raw, features: Features, *, calibration: Calibration = NEUTRAL) -> Lengths:
    """At least one token a choice, P50 ≤ P90, nothing above `max_tokens`. Never raises; NaN counts as nothing known."""
    most = float(features.limit_tokens) or MOST_TOKENS
    usual = start(anchor(*(features.values[place] for place in ANCHORS)), calibration.anchored)
    p50 = min(max(_tokens(usual + raw.p50_log + calibration.p50_shift), 1.0), most)
    p90 = min(max(_tokens(usual + raw.p90_log + calibration.p90_shift), p50), most)
    mean = math.exp(usual) * raw.mean * calibration.mean_factor
    mean = min(max(mean, 1.0), most) if math.isfinite(mean) else p50
    n = features.choices
    return Lengths(p50 * n, p90 * n, mean * n)


def anchor(*known: float) -> float:
    """Logarithm of 1 + tokens that answers like this one have: of the pool, the template and the conversation, each with
    as much weight as it has seen; of `known`, the features named by ANCHORS, in that order."""
    pool_n, pool_log, template_n, template_log, answers, mean_answer = known
    usual = (USUAL_LOG * POOL_DOUBT + pool_log * pool_n) / (POOL_DOUBT + pool_n)
    usual = (usual * TEMPLATE_DOUBT + template_log * template_n) / (TEMPLATE_DOUBT + template_n)
    if answers > 0:
        usual = (usual * ANSWER_DOUBT + math.log1p(max(mean_answer, 0.0)) * answers) / (
            ANSWER_DOUBT + answers
        )
    return min(max(usual, 0.0), MOST_LOG)


def start(usual: float, anchored: float) -> float:
    """What the models count from. `usual`: the anchor."""
    return USUAL_LOG + anchored * (usual - USUAL_LOG)


def _tokens(log: float) -> float:
    return math.expm1(min(max(log, 0.0), MOST_LOG)) if math.isfinite(log) else 1.0
