"""How long a pool's engine takes for a request: seconds per prompt token, per output token, and how both grow with what
runs beside it; and how many tokens it counts in a prompt. Fitted online from finished jobs. Pure.

    first token  = start + prefill * (prompt - cached) / 1000 + wait * beside
    run          = first token + (decode + crowd * beside) * output / 100
    prompt       = template + factor * estimated

Each a linear law (online_fit.py), so that one stalled request does not move it, and another GPU behind the same pool does.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from broker.config import ModelConfig
from predictor.estimator import Speed
from predictor.online_fit import OnlineFit, read_fit

SMOOTH = 0.05  # weight of a sample in the moving means
LEAST_S = 0.02
LEAST_TOKENS = 1.0
MOST_LOG = 3.0  # an error of a factor of 20, in the moving means
COEFFICIENTS = 5
MEANS = ("beside", "fresh_hit", "later_hit", "samples")
Vector = list[float]

# Seconds per token of one request alone, until samples say more. The embedded model on two CPU cores; GPUs as vLLM serves
# an 8B model on an H100 (docs/perf_model.md); an API far away; local engines on a workstation.
SPEEDS = {
    "embedded": Speed(0.0015, 0.02),
    "openai": Speed(0.0002, 0.015),
    "llamacpp": Speed(0.001, 0.03),
    "ollama": Speed(0.001, 0.03),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished job. `first_s`: until its first token, from the claim; None: not known. `beside`: other requests that ran
    on the same engine when it began. `known`: part of the prompt had been seen before (a later turn)."""

    prompt_tokens: int
    output_tokens: int
    run_s: float
    cached_tokens: int = 0
    first_s: float | None = None
    beside: int = 0
    known: bool = False
    estimated_tokens: int = 0  # of the prompt, by `predictor/tokens.py`; 0: not known


@dataclass(frozen=True, slots=True)
class Timing:
    """Immutable, so that requests may read it while it is replaced. See `start` for a pool of which nothing is known."""

    seconds: OnlineFit
    tokens: OnlineFit  # of a prompt as the engine counts them, from the estimate
    beside: float = 0.0  # moving mean
    fresh_hit: float = 0.0  # share of a first turn's prompt that the engine finds in its cache
    later_hit: float = 0.0  # the same of a later turn's
    samples: int = 0

    @classmethod
    def start(cls, speed: Speed) -> "Timing":
        """From the engine's constants, trusted to about a factor of three, and from the estimate as it is."""
        prefill, decode = 1e3 * speed.prefill_s_per_token, 1e2 * speed.decode_s_per_token
        spreads = (0.2, 3 * prefill, 0.05, 3 * decode, 0.5 * decode)
        seconds = OnlineFit.start((LEAST_S, prefill, 0.0, decode, 0.0), spreads=spreads)
        return cls(seconds, OnlineFit.start((0.0, 1.0), spreads=(30.0, 0.15)))

    def run_s(self, prompt_tokens: float, output_tokens: float, *, cached_tokens: float = 0.0) -> float:
        """From claim to last token, at the load that the pool has had lately."""
        fresh = max(0.0, prompt_tokens - cached_tokens)
        return self.seconds.value(_terms(fresh, output_tokens, beside=self.beside))

    def prompt_tokens(self, estimated: float) -> float:
        """As the engine will count them: its chat template's tokens are among them."""
        return max(LEAST_TOKENS, self.tokens.value((1.0, estimated)))

    def cached(self, prompt_tokens: float, *, known: bool) -> float:
        """Tokens of a prompt that the engine is expected to have in its cache."""
        return prompt_tokens * (self.later_hit if known else self.fresh_hit)

    def learn(self, sample: Sample) -> "Timing":
        """After one more finished job. What cannot be (negative times, no numbers) changes nothing."""
        if not _sane(sample):
            return self
        fresh = max(0, sample.prompt_tokens - sample.cached_tokens)
        rows: list[tuple[Vector, float]] = []
        if sample.first_s is None:
            rows.append((_terms(fresh, sample.output_tokens, beside=sample.beside), sample.run_s))
        else:
            rows.append((_terms(fresh, 0, beside=sample.beside), sample.first_s))
            decode = _terms(0, sample.output_tokens - 1, beside=sample.beside)
            if sample.output_tokens > 1:
                rows.append(([0.0, 0.0, 0.0, *decode[3:]], sample.run_s - sample.first_s))
        fitted = self.seconds
        for terms, seconds in rows:
            fitted = fitted.learn(terms, seconds, least=LEAST_S)
        return replace(self, seconds=fitted)._notice(sample)

    def _notice(self, sample: Sample) -> "Timing":
        hit = min(1.0, sample.cached_tokens / sample.prompt_tokens) if sample.prompt_tokens else 0.0
        fresh_hit, later_hit, tokens = self.fresh_hit, self.later_hit, self.tokens
        if sample.known:
            later_hit += SMOOTH * (hit - later_hit)
        else:
            fresh_hit += SMOOTH * (hit - fresh_hit)
        if sample.estimated_tokens and sample.prompt_tokens:
            tokens = tokens.learn((1.0, sample.estimated_tokens), sample.prompt_tokens, least=LEAST_TOKENS)
        beside = self.beside + SMOOTH * (sample.beside - self.beside)
        return Timing(self.seconds, tokens, beside, fresh_hit, later_hit, self.samples + 1)

    def document(self) -> dict[str, Any]:
        """For Redis; see `read_timing`."""
        means = {name: getattr(self, name) for name in MEANS}
        return {"seconds": self.seconds.document(), "tokens": self.tokens.document(), **means}


def read_timing(found: dict[str, Any]) -> Timing:
    """Raises KeyError, TypeError, ValueError for anything that `document` did not write."""
    seconds, tokens = read_fit(found["seconds"], n=COEFFICIENTS), read_fit(found["tokens"], n=2)
    return Timing(seconds, tokens, *(found[name] + 0 for name in MEANS))


def speed_of(model: ModelConfig | None) -> Speed:
    """What a pool's engine is taken to do before anything was measured."""
    if model is None:
        return Speed()
    return SPEEDS.get("embedded" if model.embedded else model.dialect, Speed(0.0001, 0.015))


def error(predicted: float, actual: float) -> float:
    """Of a forecast: the absolute logarithm of the ratio, so that twice too much is as wrong as half."""
    if predicted <= 0 or actual <= 0:
        return MOST_LOG
    return min(abs(math.log(predicted / actual)), MOST_LOG)


def _terms(fresh_tokens: float, output_tokens: float, *, beside: float) -> Vector:
    pages = output_tokens / 100
    return [1.0, fresh_tokens / 1000, float(beside), pages, pages * beside]


def _sane(sample: Sample) -> bool:
    first_s = sample.first_s or 0.0
    times = (sample.run_s, first_s, sample.run_s - first_s)
    counts = (sample.prompt_tokens, sample.cached_tokens, sample.output_tokens, sample.beside)
    return all(math.isfinite(s) and s >= 0 for s in times) and min(counts) >= 0 and sample.run_s > 0
