"""Replicas in virtual time: an agenda of what happens when, which takes no longer than its work. For benchmarks and replay."""

import heapq
import math
from collections.abc import Callable
from itertools import count

from workers.engines.sim.replica import Replica, StepResult
from workers.engines.sim.sequence import Request

Action = Callable[[], None]


class Agenda:
    """Actions in the order of their times, equal ones as they were entered. `now_s` only moves forward."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._entries: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def at(self, time_s: float, action: Action) -> None:
        heapq.heappush(self._entries, (max(time_s, self.now_s), next(self._numbers), action))

    def run(self, *, until_s: float = math.inf) -> None:
        """All that is due until then, and what that leads to."""
        while self._entries and self._entries[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._entries)
            action()
        if until_s < math.inf:
            self.now_s = max(self.now_s, until_s)


class Station:
    """A replica that works through its requests on an agenda. `on_step` is told of each step as it ends."""

    def __init__(self, agenda: Agenda, replica: Replica, *, on_step: Callable[[StepResult], None]) -> None:
        self.replica = replica
        self._agenda = agenda
        self._on_step = on_step
        self._stepping = False

    def add(self, request: Request) -> None:
        """It joins the next step. Raises ValueError as `Replica.add`."""
        self.replica.add(request)
        if not self._stepping:
            self._stepping = True
            # not at once: what arrives at the same moment shares the step
            self._agenda.at(self._agenda.now_s, self._begin)

    def abort(self, request_id: str) -> None:
        self.replica.abort(request_id)

    def _begin(self) -> None:
        self._stepping = self.replica.busy
        if self._stepping:
            result = self.replica.step()
            self._agenda.at(self._agenda.now_s + result.seconds, lambda: self._end(result))

    def _end(self, result: StepResult) -> None:
        self._on_step(result)
        self._begin()
