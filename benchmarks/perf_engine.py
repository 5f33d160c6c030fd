"""The same load through the simulated engine itself, in virtual time: slower than `closed_loop.py`, and with its real
scheduler, pages and preemption. Used by `perf_fit.py` to show that both say the same.
"""

import statistics
from collections import deque
from dataclasses import dataclass, field

from perf_checks import Run

from predictor.perf import FittedStepTimes
from workers.engines.sim.replica import Replica, StepResult
from workers.engines.sim.scheduler import Limits
from workers.engines.sim.sequence import Answer, Request, prompt_of


@dataclass(slots=True)
class Callers:
    """Each sends its next request when its last has ended."""

    replica: Replica
    upcoming: deque[tuple[int, int]]
    now_s: float = 0.0
    sent: dict[str, tuple[float, int]] = field(default_factory=dict)  # when, and how long its answer will be
    first_s: dict[str, float] = field(default_factory=dict)
    ended: list[tuple[float, float]] = field(default_factory=list)  # TTFT, TPOT

    def send(self) -> None:
        if not self.upcoming:
            return
        prompt, output = self.upcoming.popleft()
        name = str(len(self.sent))
        self.sent[name] = (self.now_s, output)
        self.replica.add(Request(name, prompt_of(range(prompt)), (Answer(output),)))

    def take(self, result: StepResult) -> None:
        self.now_s += result.seconds
        for token in result.emitted:
            self.first_s.setdefault(token.request_id, self.now_s)
        for name in result.finished:
            sent_s, output = self.sent[name]
            first_s = self.first_s[name]
            self.ended.append((first_s - sent_s, (self.now_s - first_s) / max(1, output - 1)))
            self.send()


def through_engine(run: Run) -> tuple[float, float]:
    """Mean TTFT and TPOT of a row, seconds."""
    limits = Limits(
        kv_tokens=run.replica.kv_capacity_tokens(),
        max_model_len=run.prompt + run.output + 1024,
        max_num_seqs=run.callers,
        max_num_batched_tokens=8192,
        prefix_caching=False,
    )
    callers = Callers(Replica(limits, FittedStepTimes(run.replica)), deque(run.requests()))
    for _ in range(run.callers):
        callers.send()
    while callers.replica.busy:
        callers.take(callers.replica.step())
    return statistics.mean(t for t, _ in callers.ended), statistics.mean(t for _, t in callers.ended)
