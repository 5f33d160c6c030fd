"""The estimator that learns: features, past, models and timing put together, behind the protocol of `estimator.py`.

Whatever goes wrong the request gets the simple forecast, and the log says so once. Forecasts that are slow by the median
are as wrong: then the simple ones serve for a while. Parts are replaced whole (`models`, `timings`), so that a reload is
seen by the next forecast and never by half of one.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker.errors import BrokerError
from broker.job import Forecast
from broker.tenants import DEFAULT
from predictor.estimator import Estimator, SimpleEstimator, Speed
from predictor.features import READER, Features, Reader, with_past
from predictor.habits import Habits, past_key
from predictor.history import key_of
from predictor.length import Lengths
from predictor.model_set import ModelSet
from predictor.prompt_parts import read
from predictor.timing import Timing

log = logging.getLogger("headway.predictor")
SLOW_S = 0.001
WINDOW = 33  # forecasts whose median counts
REST_S = 30.0  # without models, after they were slow or failed
WRONG = (BrokerError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(slots=True)
class Breaker:
    """Opens when the models fail, or when the median of the last forecasts is slow. `now`: `time.monotonic`."""

    slow_s: float = SLOW_S
    rest_s: float = REST_S
    opened: int = 0
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _until: float = float("-inf")

    def is_open(self, *, now: float) -> bool:
        return now < self._until

    def took(self, seconds: float, *, now: float) -> None:
        self._times.append(seconds)
        if len(self._times) == WINDOW and sorted(self._times)[WINDOW // 2] > self.slow_s:
            log.warning(
                "forecasts take more than %g ms; simple ones serve for %g s", 1e3 * self.slow_s, self.rest_s
            )
            self._open(now)

    def failed(self, error: Exception, *, now: float) -> None:
        """The error's own text may quote a request: only its kind is logged, but for Headway's own."""
        what = str(error) if isinstance(error, BrokerError) else type(error).__name__
        log.warning("forecasting failed (%s); simple forecasts serve for %g s", what, self.rest_s)
        self._open(now)

    def _open(self, now: float) -> None:
        self._until = now + self.rest_s
        self._times.clear()
        self.opened += 1


@dataclass(frozen=True, slots=True)
class Foreseen:
    """All that is foretold of one request. `past_key`: see `habits.past_key`."""

    features: Features
    lengths: Lengths
    tool_call: float
    past_key: str


@dataclass(slots=True)
class LearnedEstimator:
    """One per process. `models` None: nothing has been loaded, and `simple` serves. Any thread may ask."""

    models: ModelSet | None = None
    habits: Habits = field(default_factory=Habits)
    timings: dict[str, Timing] = field(default_factory=dict)  # by pool
    p90_shifts: dict[str, float] = field(default_factory=dict)  # by pool, see `lessons.moved`
    simple: Estimator = field(default_factory=SimpleEstimator)
    reader: Reader = READER
    readers: Mapping[str, Reader] = field(default_factory=dict)  # of pools that name a tokenizer
    speed_of: Callable[[str], Speed] = field(
        default=lambda _: Speed()
    )  # of a pool that nothing was learned of
    breaker: Breaker = field(default_factory=Breaker)

    def forecast(
        self, pool: str, body: Mapping[str, Any], *, tenant: str = DEFAULT, features: Features | None = None
    ) -> Forecast:
        """As the protocol says. About 0.1 ms, half of that with `features`."""
        models, began = self.models, time.perf_counter()
        if models is None or self.breaker.is_open(now=time.monotonic()) or "input" in body:
            return self.simple.forecast(pool, body, tenant=tenant)
        try:
            read = self._read(pool, body, tenant=tenant, features=features)
            found = self._forecast(pool, self._foresee(pool, read, models=models))
        except WRONG as error:
            self.breaker.failed(error, now=time.monotonic())
            return self.simple.forecast(pool, body, tenant=tenant)
        self.breaker.took(time.perf_counter() - began, now=time.monotonic())
        return found

    def foresee(self, pool: str, body: Mapping[str, Any], *, tenant: str = DEFAULT) -> Foreseen | None:
        """What the forecast rests on; None where there is no learned one."""
        models = self.models
        if models is None or self.breaker.is_open(now=time.monotonic()):
            return None
        try:
            return self._foresee(pool, self._read(pool, body, tenant=tenant), models=models)
        except WRONG as error:
            self.breaker.failed(error, now=time.monotonic())
            return None

    def timing(self, pool: str) -> Timing:
        """As learned, else from the engine's constants."""
        found = self.timings.get(pool)
        if found is None:
            found = self.timings[pool] = Timing.start(self.speed_of(pool))
        return found

    def _read(
        self, pool: str, body: Mapping[str, Any], *, tenant: str, features: Features | None = None
    ) -> tuple[Features, str]:
        """With what came before in that pool; and the key of that. `features`: read without a past."""
        reader = self.readers.get(pool, self.reader)
        if features is not None and reader is READER:
            key = past_key(tenant, features.template)
            return replace(features, values=with_past(features.values, self.habits.past(pool, key))), key
        parts = read(body)
        template = key_of(parts, document=body)
        key = past_key(tenant, template)
        return reader.features(body, parts, past=self.habits.past(pool, key), template=template), key

    def _foresee(self, pool: str, read: tuple[Features, str], *, models: ModelSet) -> Foreseen:
        (features, key), row = read, read[0].vector()
        lengths = shifted(models.lengths(row, features), features, shift=self.p90_shifts.get(pool, 0.0))
        return Foreseen(features, lengths, models.tool_call(row, features), key)

    def _forecast(self, pool: str, foreseen: Foreseen) -> Forecast:
        """P50 for the time, as it orders single requests and their sums only among themselves; P90 for the room."""
        features, lengths, timing = foreseen.features, foreseen.lengths, self.timing(pool)
        prompt = timing.prompt_tokens(features.prompt_tokens)
        cached = timing.cached(prompt, known=features["answers"] > 0)
        run_s = timing.run_s(prompt, lengths.p50 / features.choices, cached_tokens=cached)
        return Forecast(
            prompt_tokens=round(prompt),
            output_tokens=round(lengths.p50),
            run_s=run_s,
            kv_tokens=round(prompt + lengths.p90),
            tool_call=round(foreseen.tool_call, 4),
        )


def shifted(lengths: Lengths, features: Features, *, shift: float) -> Lengths:
    """With P90 corrected by what its pool has shown: not below P50, and within what the caller allows."""
    if not shift:
        return lengths
    p90 = max(lengths.p90 * math.exp(shift), lengths.p50)
    most = features.limit_tokens * features.choices or p90
    return lengths._replace(p90=min(p90, most))
