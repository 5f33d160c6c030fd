"""How likely the small model of a route suffices for a request: a linear model over the shared features and the words.

The model is one JSON file of numbers, read once; a request costs some 20 us of plain Python. Without a usable file there
is `RULE`: by the kind of prompt alone. Nothing here raises once it is loaded.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from broker.errors import ConfigError
from predictor.features import FEATURES, VERSION, Features
from predictor.prompt_types import PromptType

MODEL = Path(__file__).parent / "models" / "sufficiency.json"
MOST_Z = (
    4.0  # standard deviations that one feature may count for: traffic may be unlike what was learned from
)
RULE: Mapping[PromptType, float] = {
    PromptType.CHAT: 0.9,
    PromptType.FACT: 0.85,
    PromptType.EXTRACTION: 0.85,
    PromptType.TRANSLATION: 0.8,
    PromptType.SUMMARY: 0.85,
    PromptType.REWRITE: 0.85,
    PromptType.CLASSIFICATION: 0.8,
    PromptType.LIST: 0.8,
    PromptType.ROLEPLAY: 0.8,
    PromptType.CREATIVE: 0.75,
    PromptType.EXPLAIN: 0.7,
    PromptType.CODE: 0.5,
    PromptType.REASONING: 0.5,
    PromptType.MATHS: 0.45,
}
RULE_LONG_TOKENS = 4000
RULE_LONG = 0.15  # less for a prompt that is longer


@dataclass(frozen=True, slots=True)
class Curve:
    """Of validation requests, by rising threshold: the share that goes to the large pool, and what of its gain is kept."""

    thresholds: tuple[float, ...]
    share_large: tuple[float, ...]
    quality: tuple[float, ...]

    def for_share(self, share: float) -> float:
        """The highest threshold that sends no more than `share` to the large pool."""
        if share >= 1.0:
            return 1.0
        at = bisect.bisect_right(self.share_large, share + 1e-9)
        return self.thresholds[max(0, at - 1)]

    def for_quality(self, quality: float) -> float:
        """The lowest threshold that keeps `quality`."""
        found = (t for t, kept in zip(self.thresholds, self.quality, strict=True) if kept >= quality - 1e-9)
        return next(found, self.thresholds[-1])


@dataclass(frozen=True, slots=True)
class Model:
    """Predicts what the large model would gain, and from that P(the small one suffices) by a fitted logistic.

    `weights`, `mean`, `scale`: of each feature's signed log(1 + |x|). `words`: of each its weight, and its own square in
    the length by which the weights of all the words of a prompt are divided.
    """

    version: str
    bias: float
    weights: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    words: Mapping[bytes, tuple[float, float]]
    logistic: tuple[float, float]  # intercept, slope
    curve: Curve
    _used: tuple[tuple[int, float, float, float], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        columns = zip(self.weights, self.mean, self.scale, strict=True)
        used = tuple((i, w, m, 1.0 / s) for i, (w, m, s) in enumerate(columns) if w and s > 0)
        object.__setattr__(self, "_used", used)

    def gain(self, features: Features) -> float:
        """What the large model would add to the chance of a good answer."""
        values, total, log1p = features.values, self.bias, math.log1p
        for i, weight, mean, inverse in self._used:
            x = values[i]
            z = ((log1p(x) if x >= 0 else -log1p(-x)) - mean) * inverse
            total += weight * (z if -MOST_Z < z < MOST_Z else math.copysign(MOST_Z, z))
        known = self.words
        found = [known[word] for word in features.words if word in known]
        if found:
            total += sum([weight for weight, _ in found]) / math.sqrt(sum([square for _, square in found]))
        return total

    def probability(self, features: Features) -> float:
        """0 to 1."""
        intercept, slope = self.logistic
        x = intercept + slope * self.gain(features)
        return 1.0 / (1.0 + math.exp(-min(max(x, -30.0), 30.0))) if math.isfinite(x) else 0.5


class ByRule:
    """Where there is no model. Its thresholds are what they are: no data stands behind the curve but the table."""

    version = "rule"
    curve = Curve(
        thresholds=(0.0, 0.5, 0.6, 0.71, 0.76, 0.81, 0.86, 1.0),
        share_large=(0.0, 0.1, 0.25, 0.35, 0.45, 0.6, 0.85, 1.0),
        quality=(0.0, 0.4, 0.75, 0.85, 0.9, 0.95, 0.98, 1.0),
    )

    def probability(self, features: Features) -> float:
        long = RULE_LONG if features.prompt_tokens > RULE_LONG_TOKENS else 0.0
        return RULE[features.prompt_type] - long


Sufficiency = Model | ByRule


def load(path: Path = MODEL) -> Model:
    """Raises ConfigError if the file is missing, malformed, or of other features than these."""
    try:
        found = orjson.loads(path.read_bytes())
        model = Model(
            version=str(found["version"]),
            bias=float(found["bias"]),
            weights=tuple(map(float, found["weights"])),
            mean=tuple(map(float, found["mean"])),
            scale=tuple(map(float, found["scale"])),
            words={word.encode(): (float(w), float(square)) for word, (w, square) in found["words"].items()},
            logistic=(float(found["logistic"][0]), float(found["logistic"][1])),
            curve=Curve(*(tuple(map(float, column)) for column in found["curve"])),
        )
        same = tuple(found["features"]) == FEATURES and found["features_version"] == VERSION
        columns = {len(model.weights), len(model.mean), len(model.scale)}
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not a model of sufficiency: {error!r}") from error
    if not same or columns != {len(FEATURES)} or len(model.curve.thresholds) < 2:
        raise ConfigError(f"{path}: trained on other features than this version's; train again")
    return model
