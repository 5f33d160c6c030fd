"""What a pool's finished jobs have taught: its timing, and how far forecasts are off. One JSON document in Redis. Pure.

Written by one process at a time (`broker/learning.is_teacher`), which goes on where the last one stopped: `after`.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from broker.learning import Entry, Outcome
from predictor.estimator import Speed
from predictor.features import INDEX, VERSION
from predictor.timing import SMOOTH, Sample, Timing, error, read_timing

BEGINNING = "0"
STEP = 0.03  # of the logarithm, for one outcome
MOST_SHIFT = 1.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Moving means of the absolute logarithm of forecast over outcome, as the forecasts were when the jobs were queued."""

    run: float | None = None
    output: float | None = None

    def after(self, outcome: Outcome) -> "Drift":
        run, output = self.run, self.output
        if outcome.forecast_s > 0 and outcome.run_s > 0:
            run = _moved(run, error(outcome.forecast_s, outcome.run_s))
        if outcome.forecast_tokens > 0:
            output = _moved(output, error(outcome.forecast_tokens, outcome.output_tokens))
        return Drift(run, output)


def moved(shift: float, outcome: Outcome) -> float:
    """The correction of P90 (added to its logarithm) after one more outcome, so that it covers nine in ten whatever the models
    say. A caller's own limit tells nothing. Source: Gibbs and Candes, Adaptive Conformal Inference (2021), eq. 2."""
    mine = outcome.features_version == VERSION and len(outcome.features) == len(INDEX)
    limit = outcome.features[INDEX["limit_tokens"]] if mine else 0.0
    if outcome.forecast_p90 <= 0 or 0 < limit <= outcome.forecast_p90:
        return shift
    missed = float(outcome.output_tokens > outcome.forecast_p90)
    return min(max(shift + STEP * (missed - 0.1), -MOST_SHIFT), MOST_SHIFT)


@dataclass(frozen=True, slots=True)
class Lessons:
    """Of one pool. `after`: the last entry of the stream that it rests on."""

    timing: Timing
    after: str = BEGINNING
    drift: Drift = field(default_factory=Drift)
    p90_shift: float = 0.0

    def learn(self, entry: Entry) -> "Lessons":
        """One more finished job."""
        outcome = entry.outcome
        return replace(
            self,
            timing=self.timing.learn(sample_of(outcome)),
            after=entry.at,
            drift=self.drift.after(outcome),
            p90_shift=moved(self.p90_shift, outcome),
        )

    def dump(self) -> bytes:
        """Of about 900 bytes."""
        drift = {"run": self.drift.run, "output": self.drift.output}
        known = {"after": self.after, "timing": self.timing.document(), "drift": drift}
        return orjson.dumps(known | {"p90_shift": self.p90_shift})


def read_lessons(document: bytes | None, *, speed: Speed) -> Lessons:
    """From the beginning, at the engine's constants, if there are none or those of another version of Headway."""
    try:
        found: dict[str, Any] = orjson.loads(document or b"null")
        drift = Drift(**found["drift"])
        return Lessons(read_timing(found["timing"]), str(found["after"]), drift, float(found["p90_shift"]))
    except (KeyError, TypeError, ValueError):
        return Lessons(Timing.start(speed))


def sample_of(outcome: Outcome) -> Sample:
    """What the timing model learns from."""
    mine = outcome.features_version == VERSION and len(outcome.features) == len(INDEX)
    return Sample(
        prompt_tokens=outcome.prompt_tokens,
        output_tokens=outcome.output_tokens,
        run_s=outcome.run_s,
        cached_tokens=outcome.cached_tokens,
        first_s=outcome.first_s,
        beside=outcome.beside,
        known=mine and outcome.features[INDEX["answers"]] > 0,
        estimated_tokens=round(outcome.features[INDEX["prompt_tokens"]]) if mine else 0,
    )


def _moved(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTH * (value - mean)
