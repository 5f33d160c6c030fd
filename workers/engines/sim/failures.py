"""How the engine misbehaves, drawn per request from a seed: the n-th request fails in the same way in every run."""

import random
from dataclasses import dataclass, fields
from enum import Enum

from broker.errors import ConfigError


class Fault(Enum):
    """What goes wrong with one request."""

    NONE = "none"
    ERROR = "error"  # 500
    BUSY = "busy"  # 503, with Retry-After
    GARBAGE = "garbage"  # an answer or an event that is no JSON
    HANG = "hang"  # this stream stops and stays open
    FREEZE = "freeze"  # all streams stop
    CRASH = "crash"  # the process ends


@dataclass(frozen=True, slots=True)
class Failures:
    """Rates are shares of requests in 0..1; the `after` numbers count requests from 1, 0: never.

    `crash_after`, `hang_after`: at the first token of that request the process ends, or the engine stands still.
    """

    seed: int = 0
    crash_after: int = 0
    hang_after: int = 0
    hang_rate: float = 0.0
    error_rate: float = 0.0
    busy_rate: float = 0.0
    garbage_rate: float = 0.0
    slow_factor: float = 1.0
    wrong_usage: bool = False

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_rate")):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be between 0 and 1")
        if self.slow_factor <= 0:
            raise ConfigError("slow_factor must be above 0")

    def of(self, number: int) -> Fault:
        """What goes wrong with the `number`-th request."""
        if number == self.crash_after:
            return Fault.CRASH
        if number == self.hang_after:
            return Fault.FREEZE
        draw = random.Random(f"{self.seed}/{number}").random()
        for fault, rate in (
            (Fault.BUSY, self.busy_rate),
            (Fault.ERROR, self.error_rate),
            (Fault.GARBAGE, self.garbage_rate),
            (Fault.HANG, self.hang_rate),
        ):
            if draw < rate:
                return fault
            draw -= rate
        return Fault.NONE
