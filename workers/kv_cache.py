"""The engine's KV cache as the worker counts it: what runs holds, what it will hold, and what the engine says. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from workers.holding import Holding
from workers.kv_pages import peak_tokens
from workers.pace import Pace

BOUND = 0.5  # of the cache: by how much the engine's word moves the count, at most


@dataclass(slots=True)
class Cache:
    """`unseen`: tokens that the engine has in use beyond what is counted; below 0 where jobs share prefixes."""

    total_tokens: int
    unseen: int = 0

    def observe(self, used_share: float | None, *, held: Collection[Holding], pace: Pace, now: float) -> None:
        """None: the engine does not say, or has not for too long; then our count stands alone."""
        if used_share is None:
            self.unseen = 0
            return
        bound, used = int(BOUND * self.total_tokens), int(used_share * self.total_tokens)
        live = sum(h.live_tokens(pace, now=now) for h in held)
        # a prompt that is still to be read takes nothing yet: only less than the others' is a sign of shared prefixes
        read = sum(h.live_tokens(pace, now=now) for h in held if not h.is_prefilling(pace, now=now))
        unseen = used - live if used > live else min(0, used - read)
        self.unseen = max(-min(bound, live // 2), min(bound, unseen))

    def free_tokens(self, held: Collection[Holding], pace: Pace, *, now: float) -> int:
        """What a new job may still need at most: the cache without the peak that the running jobs are predicted to reach."""
        growths = (h.growth(pace, now=now) for h in held if not h.leaving)
        leaving = sum(h.live_tokens(pace, now=now) for h in held if h.leaving)
        return max(0, self.total_tokens - self.unseen - leaving - peak_tokens(growths))

    def is_short(self, held: Collection[Holding], pace: Pace, *, now: float) -> bool:
        """Whether another page for each answer would not fit, even when those have left that have been told to.

        A job that is alone is never too big: the engine alone can say so.
        """
        staying = [h for h in held if not h.leaving]
        if len(staying) < 2:
            return False
        live = sum(h.live_tokens(pace, now=now) + h.page * h.lease.choices for h in staying)
        return live + self.unseen > self.total_tokens
