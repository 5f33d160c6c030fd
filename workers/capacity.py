"""What a worker may ask the queue for. Pure: no I/O, no clock. Slots now; the KV ledger of issue 4 joins it here."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Counts the engine's slots: concurrent requests it takes at once. A job holds one from lease to end."""

    slots: int
    _held: set[str] = field(default_factory=set)

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self._held))

    @property
    def busy(self) -> int:
        return len(self._held)

    def take(self, job_id: str) -> None:
        self._held.add(job_id)

    def give_back(self, job_id: str) -> None:
        """Idempotent."""
        self._held.discard(job_id)
