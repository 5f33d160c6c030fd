"""How likely a request ends in a tool call: the model's word, unless the request itself decides it. Pure."""

import math

from predictor.features import Features

UNKNOWN = 0.5  # where tools are offered and no model is loaded


def likelihood(raw: float, features: Features) -> float:
    """`raw`: the model's probability; NaN counts as unknown."""
    if not features["tools"] or features["tool_forced"] < 0:
        return 0.0
    if features["tool_forced"] > 0:
        return 1.0
    return min(max(raw, 0.0), 1.0) if math.isfinite(raw) else UNKNOWN
