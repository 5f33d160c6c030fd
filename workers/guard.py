"""Judges the first pass of a routed job while it runs: what may be sent on, and when to stop for the larger model.

Invariant: once a chunk has been given out to a connection, the pass is not called off any more.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from broker.errors import BrokerError
from broker.heirs import Plan
from broker.job import Lease
from workers import verdict
from workers.assemble import Assembler
from workers.engine import CHAT, Delta, Final

LOOK_EVERY = 128  # payloads between looks for a loop


class Unfit(BrokerError):
    """The answer will not do; `why`: see `verdict`."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the first pass is not good enough: {why}")
        self.why = why


class Guard:
    """One pass. `take` and `end` say what may be sent now, and raise Unfit instead."""

    def __init__(self, lease: Lease, request: dict[str, Any]) -> None:
        self._lease = lease
        self._request = request
        self._plan = Plan.parse(lease.plan)
        self._assembler = Assembler()
        self._held: list[Delta] = []
        self._passed = False
        self._lenient = False
        self.payloads = 0
        self._text = ""
        self._says = False  # something that a caller can see: text, a tool call, reasoning
        self._confidence = verdict.Confidence()
        asked = request.get("logprobs")  # 0 is a wish of a completion: the chosen tokens' alone
        self._strips = self._plan.window > 0 and (asked is None or asked is False)
        self.confidence: float | None = None  # once there is a verdict

    @property
    def is_bound(self) -> bool:
        """Whether a connection may have seen a part of the answer."""
        return self._passed and self._lease.attached and self._lease.stream

    @property
    def streams(self) -> bool:
        """A cascade's verdict needs tokens as they come, whatever the caller gets."""
        return self._lease.stream or self._plan.window > 0

    def asked(self) -> dict[str, Any]:
        """What the engine is asked: the caller's request, with probabilities where a verdict needs them."""
        if not self._plan.window:
            return self._request
        own = {"logprobs": True, "top_logprobs": 2} if self._lease.endpoint == CHAT else {"logprobs": 2}
        return {**self._request, **(own if self._strips else {})}

    def take(self, delta: Delta) -> list[Delta]:
        """Raises Unfit."""
        self.payloads += delta.count
        if self.is_bound and not self._strips:
            return [delta]
        self._held.append(self._read(delta))
        if self._passed:
            self._look_for_loop(delta.count)
            return self.give_out()
        return self.give_out() if self._may_pass() else []

    def end(self, final: Final) -> list[Delta]:
        """What is left to be sent. Raises Unfit."""
        if self._passed and (self.is_bound or self._lenient):
            return []
        answer = orjson.loads(final.body) if final.body else orjson.loads(self._assembler.whole(None))
        if (why := verdict.flaw(self._request, answer)) is not None:
            raise Unfit(why)
        if self._plan.window and not self._passed:
            self._judge()
        return self.give_out()

    def give_in(self) -> list[Delta]:
        """There is nobody to hand it on to: this answer will have to do. What may be sent now."""
        self._lenient = True
        return self.give_out()

    def whole(self, final: Final) -> bytes:
        """The answer as one document."""
        return final.body or self._assembler.whole(final.usage)

    def _read(self, delta: Delta) -> Delta:
        """Takes note of it; without probabilities that the caller has not asked for."""
        payloads = []
        for payload in delta.data.split(b"\n"):
            chunk = orjson.loads(payload)
            for choice in _choices(chunk):
                self._confidence.feed(choice)
                self._text += verdict.text_of(choice)[0]
                self._says = self._says or verdict.says(choice)
                if self._strips:
                    choice.pop("logprobs", None)
            payloads.append(orjson.dumps(chunk) if self._strips else payload)
        data = b"\n".join(payloads)
        self._assembler.feed(data)
        return Delta(data, delta.count)

    def _may_pass(self) -> bool:
        if self._plan.window:
            if len(self._confidence.logprobs) < self._plan.window:
                return self._gives_none()
            self._judge()
            return True
        if not self._lease.attached:
            return True  # a watcher is told of a new beginning
        return self._says and self._begins_well()

    def _gives_none(self) -> bool:
        """An engine that writes and gives no probabilities is not waited for."""
        return not self._confidence.logprobs and self._says

    def _begins_well(self) -> bool:
        begun = self._text.lstrip()
        if begun and begun[0] not in "{[" and verdict.wants_json(self._request):
            raise Unfit("invalid_json")
        return True

    def _judge(self) -> None:
        self.confidence = self._confidence.of_first(self._plan.window)
        if self.confidence is not None and self.confidence < self._plan.floor:
            raise Unfit("low_confidence")

    def give_out(self) -> list[Delta]:
        self._passed = True
        held, self._held = self._held, []
        return held

    def _look_for_loop(self, count: int) -> None:
        crossed = (self.payloads - count) // LOOK_EVERY < self.payloads // LOOK_EVERY
        if crossed and not (self.is_bound or self._lenient) and verdict.loops(self._text):
            raise Unfit("repetition")


def _choices(chunk: Any) -> Iterable[dict[str, Any]]:
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
