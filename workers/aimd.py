"""How many requests an engine runs well at once, found by trying: additive increase, multiplicative decrease. Pure.

Jobs report how long their first token and each further one took. A round is as many jobs as the limit allows. If the
round's median is far above the moving baseline, the engine queues or thrashes: the limit falls by a factor; so it does
when the engine answers "busy". Else, if the limit was in the way, it rises by one (doubles before the first fall).
Falls that bring no relief were for nothing: something else sets the delay (other prompts, a colder cache), which becomes the new
baseline. Where the slots are known, times tell nothing, for the engine was told how many to run: only "busy" lowers the limit.
Source: the control law of TCP (Jacobson 1988; Chiu and Jain 1989 on its fairness), with TCP Vegas' use of delay.
"""

import math
from dataclasses import dataclass, field
from statistics import median

MAX_FOUND = 256
MIN_ROUND = 4  # samples
FALL, BUSY_FALL = 0.8, 0.5
TOLERANCE = 2.0  # times the baseline
BUSY_EVERY_S = 1.0  # one incident refuses many requests at a time
FORGET = 1.02  # the baseline rises by so much a round, so that other traffic can set another one
RELIEF, PATIENCE = 0.8, 3  # of the delay at the first of so many falls in a row
READ_TOKENS = 512  # a first token costs as much as reading so many prompt tokens, at least


@dataclass(slots=True)
class Signal:
    """One kind of delay. `slack_s`: a rise below it is noise."""

    slack_s: float
    baseline_s: float = math.inf
    samples: list[float] = field(default_factory=list)
    _bad: list[float] = field(default_factory=list)

    def is_bad(self, tolerance: float) -> bool:
        """Ends the round."""
        if not self.samples:
            return False
        now_s = median(self.samples)
        self.samples.clear()
        if now_s <= tolerance * self.baseline_s + self.slack_s:
            self._bad.clear()
            self.baseline_s = min(now_s, self.baseline_s * FORGET)
            return False
        if len(self._bad) == PATIENCE and now_s > RELIEF * self._bad[0]:
            self._bad.clear()
            self.baseline_s = now_s
            return False
        self._bad = [*self._bad, now_s][-PATIENCE:]
        self.baseline_s *= FORGET
        return True


@dataclass(slots=True)
class Concurrency:
    """`slots`: what the engine is said to run at once, which is never exceeded; None: it has to be found from a `start`."""

    slots: int | None
    start: int = 4
    limit: float = field(init=False)
    _first: Signal = field(default_factory=lambda: Signal(0.05))
    _next: Signal = field(default_factory=lambda: Signal(0.005))
    _ended: int = 0
    _pressed: bool = False
    _has_fallen: bool = False
    _busy_at: float = -math.inf

    def __post_init__(self) -> None:
        self.limit = float(self.slots or self.start)
        self._has_fallen = self.slots is not None

    @property
    def now(self) -> int:
        """Requests at once, at least 1."""
        return int(self.limit)

    @property
    def ceiling(self) -> int:
        return self.slots or MAX_FOUND

    def full(self) -> None:
        """The limit is in the way of another job."""
        self._pressed = True

    def saw_first(self, ttft_s: float, *, prompt_tokens: int) -> None:
        """Scaled to a prompt of READ_TOKENS, so that longer prompts alone do not look like a slower engine."""
        self._first.samples.append(ttft_s * 2 * READ_TOKENS / (READ_TOKENS + prompt_tokens))

    def saw_answer(self, tpot_s: float) -> None:
        """A job has ended; `tpot_s`: seconds for each of its tokens after the first."""
        self._next.samples.append(tpot_s)
        self._ended += 1
        if self._ended >= max(MIN_ROUND, self.now):
            self._judge()

    def busy(self, *, now: float) -> None:
        """The engine refused a request, as it has no room."""
        if now - self._busy_at >= BUSY_EVERY_S:
            self._busy_at = now
            self._fall(BUSY_FALL)

    def _judge(self) -> None:
        bad = [signal.is_bad(TOLERANCE) for signal in (self._first, self._next)]
        pressed, self._pressed, self._ended = self._pressed, False, 0
        if any(bad) and self.slots is None:
            self._fall(FALL)
        elif pressed:
            raised = self.limit + 1 if self._has_fallen else self.limit * 2
            self.limit = min(raised, float(self.ceiling))

    def _fall(self, factor: float) -> None:
        self.limit = max(1.0, self.limit * factor)
        self._has_fallen = True
