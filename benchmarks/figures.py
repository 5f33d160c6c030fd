"""The figures' file format, which every benchmark here writes and `results.py` turns into RESULTS.md."""

import argparse
import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """`baseline`: the same measure of what it is compared with, from the same run; None if there is none."""

    figure: str
    value: float
    unit: str
    baseline: float | None
    setting: str


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="at most a minute; fewer rounds, the same measures"
    )
    parser.add_argument("--json", type=Path, help="append one JSON line per figure to this file")
    return parser


def hardware() -> str:
    """What the figures were measured on."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return f"{len(names)} x {name}, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"


def report(figures: list[Figure], path: Path | None) -> None:
    """Prints the figures, and appends them to `path`."""
    lines = [json.dumps(asdict(figure) | {"hardware": hardware()}) for figure in figures]
    for line in lines:
        print(line)
    if path is not None:
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
