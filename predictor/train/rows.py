"""What models learn from: features and what came of them. Read from JSON lines, one finished request a line.

    {"features": [...], "features_version": 1, "output_tokens": 210, "tool_called": false, "prompt_type": "code"}
    {"document": {"messages": [...]}, "output_tokens": 210}

The second form holds prompts and is for files of your own; what Headway itself writes is the first, which holds none.
`group` (optional) says which rows belong together, such as a conversation: a split never parts them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from broker.errors import ConfigError
from predictor.features import FEATURES, VERSION, extract

Floats = NDArray[np.float64]
UNKNOWN = float("nan")  # of a label


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of n requests. `x`: (n, features). `output` tokens and `tool` (0 or 1): NaN where unknown."""

    x: Floats
    output: Floats
    tool: Floats
    kinds: NDArray[np.str_]  # prompt types
    groups: NDArray[np.str_]
    weight: Floats

    def __len__(self) -> int:
        return len(self.output)

    def take(self, chosen: NDArray[Any]) -> "Rows":
        """`chosen`: a mask or indices."""
        columns = (self.x, self.output, self.tool, self.kinds, self.groups, self.weight)
        return Rows(*(column[chosen] for column in columns))


@dataclass(frozen=True, slots=True)
class Row:
    """One finished request."""

    values: tuple[float, ...]
    output: float = UNKNOWN
    tool: float = UNKNOWN
    kind: str = ""
    group: str = ""
    weight: float = 1.0


def table(rows: Iterable[Row]) -> Rows:
    """A row without a group is one of its own."""
    found = list(rows)
    return Rows(
        x=np.array([row.values for row in found], float).reshape(len(found), len(FEATURES)),
        output=np.array([row.output for row in found], float),
        tool=np.array([row.tool for row in found], float),
        kinds=np.array([row.kind for row in found], str),
        groups=np.array([row.group or f"row {at}" for at, row in enumerate(found)], str),
        weight=np.array([row.weight for row in found], float),
    )


def read_rows(paths: Iterable[Path]) -> Rows:
    """Raises ConfigError, which names the file and the line."""
    return table(row for path in paths for row in _read(path))


def _read(path: Path) -> Iterator[Row]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _row(line, where=f"{path}, line {number}")


def _row(line: bytes, *, where: str) -> Row:
    try:
        found = orjson.loads(line)
        values, kind = _features(found, where=where)
        return Row(
            values=values,
            output=_label(found.get("output_tokens")),
            tool=_label(found.get("tool_called")),
            kind=kind,
            group=str(found.get("group", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: not a finished request: {error!r}") from error


def _features(found: Mapping[str, Any], *, where: str) -> tuple[tuple[float, ...], str]:
    if "document" in found:
        features = extract(found["document"])
        return features.values, str(features.prompt_type)
    values = tuple(map(float, found["features"]))
    if found.get("features_version", VERSION) != VERSION or len(values) != len(FEATURES):
        raise ConfigError(f"{where}: features of another version of Headway")
    return values, str(found.get("prompt_type", ""))


def _label(value: object) -> float:
    return UNKNOWN if value is None else float(value)  # type: ignore[arg-type]
