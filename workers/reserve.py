"""How many slots batch work leaves free for interactive jobs that have not come yet. Pure: time is an argument.

A free slot costs throughput all the time, and helps only while interactive jobs would have to wait. So the adaptive
reserve follows the need that was seen: it grows when a P0 job waited in vain at this worker, and halves every `HALF_S`.
Without such waits it is nothing, and batch work has every slot. (A quantile of the interactive concurrency of each
worker was tried first: it keeps slots in every worker for one job that any of them could take, and cost 10 % of
throughput where this costs 1 %: docs/capacity.md.)
"""

import math
from dataclasses import dataclass

STEP = 0.5  # slots for one wait
HALF_S = 10.0


@dataclass(slots=True)
class Reserve:
    """`fixed`: share of the slots that batch work never takes; None: adaptive, up to `most` of them. Shares: 0 to 1."""

    fixed: float | None = None
    most: float = 0.25
    _level: float = 0.0  # slots, as of `_at`
    _at: float = 0.0

    def missed(self, slots: int, *, now: float) -> None:
        """A P0 job waited as long as it may, and this worker had no slot for it."""
        self._level, self._at = min(self._now(now) + STEP, self._bound(slots)), now

    def kept(self, slots: int, *, now: float) -> int:
        """How many slots are not for batch work: fixed of all, adaptive of those that are free."""
        if self.fixed is not None:
            return min(slots, math.ceil(self.fixed * slots))
        return min(round(self._now(now)), self._bound(slots))

    def bulk_slots(self, slots: int, *, free: int, bulk: int, now: float) -> int:
        """How many more slots batch work may take, of `free` ones."""
        kept = self.kept(slots, now=now)
        room = slots - kept - bulk if self.fixed is not None else free - kept
        return max(0, min(free, room))

    def _bound(self, slots: int) -> int:
        return min(math.floor(self.most * slots), slots - 1)

    def _now(self, now: float) -> float:
        return self._level * math.exp2(-max(0.0, now - self._at) / HALF_S)
