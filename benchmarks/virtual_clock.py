"""The queue's own scripts with a clock that does not wait, and an agenda of what happens when."""

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from broker.script import Call

START_S = 1_000_000_000.0


@dataclass(slots=True, kw_only=True)
class VirtualClock:
    """`now_s`: since the beginning. An event calls the method of its kind: (time, number, kind, subject)."""

    client: "redis.Redis"
    now_s: float = 0.0
    agenda: list[tuple[float, int, str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))
    loaded: dict[str, Any] = field(default_factory=dict)

    def run(self, call: Call) -> Any:
        """A script whose clock is ours: the time is written into a key that `now_ms` reads."""
        if call.script.name not in self.loaded:
            clock = "local function now_ms() return tonumber(redis.call('GET', 'clock')) end\n"
            source = re.sub(
                r"local function now_ms\(\).*?\nend\n", clock, call.script.source.decode(), flags=re.DOTALL
            )
            self.loaded[call.script.name] = self.client.register_script(source)
        self.client.set("clock", round((START_S + self.now_s) * 1000))
        return self.loaded[call.script.name](keys=call.keys, args=call.args)

    def plan(self, at_s: float, kind: str, subject: Any) -> None:
        heapq.heappush(self.agenda, (at_s, next(self.numbers), kind, subject))

    def next_event(self) -> None:
        self.now_s, _, kind, subject = heapq.heappop(self.agenda)
        getattr(self, kind)(subject)
