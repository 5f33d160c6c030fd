"""What `headway doctor` found: `fail` means that jobs are refused, lost or stuck; `warn` that they may be."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    topic: str
    text: str
