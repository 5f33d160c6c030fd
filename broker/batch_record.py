"""A batch's vocabulary: statuses, what its creator asks for, what the API shows, how its hash is read.

Plain data, no I/O. Used by `batches.py`, the API and the Celery tasks.
"""

import hashlib
import os
from dataclasses import dataclass
from enum import StrEnum

import orjson

from broker import batch_scripts
from broker.batch_scripts import Cut, Held
from broker.job import ServiceClass, base32


class BatchStatus(StrEnum):
    """OpenAI's. See docs/state_machine.md."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (
            BatchStatus.COMPLETED,
            BatchStatus.FAILED,
            BatchStatus.EXPIRED,
            BatchStatus.CANCELLED,
        )


class Mode(StrEnum):
    """What is done with lines that have no answer yet: asked for, left out, or reported as expired."""

    FEED = "feed"
    CANCEL = "cancel"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A batch as its creator wants it. `metadata`: JSON object. `key`: equal keys of a tenant give one batch."""

    input_file_id: str
    endpoint: str
    service_class: ServiceClass = ServiceClass.P2
    completion_window: str = "24h"
    window_s: float = 86_400.0
    tenant: str = "default"
    metadata: bytes = b""
    key: str = ""
    pools: tuple[str, ...] = ()  # that its lines may name; none: all


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as it is now. `times`: seconds since the epoch by OpenAI's names, those that are known."""

    batch_id: str
    status: BatchStatus
    spec: BatchSpec
    total: int
    completed: int
    failed: int
    slices: int
    sent: int
    done: int
    output_file_id: str
    error_file_id: str
    errors: bytes
    times: dict[str, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """A unit that is ours now. `left_s`: until the batch expires. `cut`: for slices."""

    held: Held
    mode: Mode
    left_s: float
    cut: Cut | None

    @property
    def is_first(self) -> bool:
        """Whether nobody held the unit before."""
        return self.held.token == 1


TIMES = tuple(
    f"{name}_at"
    for name in (
        "created",
        "in_progress",
        "expires",
        "finalizing",
        "completed",
        "failed",
        "expired",
        "cancelling",
        "cancelled",
    )
)


def batch_id_of(spec: BatchSpec) -> str:
    """Random, or derived from the tenant and the key of a request that may be repeated."""
    entropy = hashlib.sha256(f"{spec.tenant}\0{spec.key}".encode()).digest() if spec.key else os.urandom(15)
    return f"batch_{base32(int.from_bytes(entropy[:15]), 24)}"


def view(batch_id: str, fields: dict[bytes, bytes]) -> BatchView:
    """Reads a batch's hash as the scripts write it."""

    def text(name: str) -> str:
        return fields.get(name.encode(), b"").decode()

    def number(name: str) -> int:
        return int(fields.get(name.encode(), b"0"))

    spec = BatchSpec(
        input_file_id=text("input_file"),
        endpoint=text("endpoint"),
        service_class=ServiceClass(number("class")),
        completion_window=text("window"),
        window_s=float(text("window_s")),
        tenant=text("tenant"),
        metadata=fields.get(b"metadata", b""),
        pools=tuple(name for name in text("pools").split(",") if name),
    )
    return BatchView(
        batch_id=batch_id,
        status=BatchStatus(text("status")),
        spec=spec,
        total=number("total"),
        completed=number("completed"),
        failed=number("failed"),
        slices=number("slices"),
        sent=number("sent"),
        done=number("done"),
        output_file_id=text("output_file"),
        error_file_id=text("error_file"),
        errors=fields.get(b"errors", b""),
        times={name: number(name) // 1000 for name in TIMES if name.encode() in fields},
    )


def message_for(batch_id: str, unit: str) -> tuple[str, tuple[str, ...]]:
    """The Celery task and its arguments that do a unit."""
    if unit in (batch_scripts.PLAN, batch_scripts.FINALIZE):
        return f"headway.{unit}", (batch_id,)
    return "headway.slice", (batch_id, unit)


def part_path(batch_id: str, number: int, *, token: int) -> str:
    """Where the part of a slice is stored; `.out` and `.err` are added. A stale holder's part has another name."""
    return f"batches/{batch_id}/{number:07d}-{token}"


def folders() -> str:
    """Where the folders of all batches are that have parts."""
    return "batches"


def folder(batch_id: str) -> str:
    return f"{folders()}/{batch_id}"


def metadata_of(batch: BatchView) -> dict[str, str] | None:
    return dict(orjson.loads(batch.spec.metadata)) if batch.spec.metadata else None
