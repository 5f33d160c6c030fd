"""Makes RESULTS.md from the JSON lines that the benchmarks wrote: `python benchmarks/results.py FILE [FILE …]`."""

import json
import sys
from pathlib import Path

HEAD = """# Results

Made by `benchmarks/results.py` from the files in `benchmarks/results/`; every figure has its script, its baseline from
the same run, and where it was measured. The machine has two shared cores whose speed drifts: believe ratios first.
"""
NOTES = Path(__file__).with_name("notes.md")


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def table(rows: list[dict[str, object]]) -> str:
    head = "| figure | value | baseline | unit | setting |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{r['figure']}` | {number(r['value'])} | {number(r['baseline'])} | {r['unit']} | {r['setting']} |\n"  # type: ignore[arg-type]
        for r in rows
    )


def main(files: list[Path]) -> str:
    parts = [HEAD]
    for file in files:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        latest = {row["figure"]: row for row in rows}
        parts.append(f"\n## {file.stem}\n\n{rows[-1]['hardware']}\n\n{table(list(latest.values()))}")
    if NOTES.exists():
        parts.append("\n" + NOTES.read_text())
    return "".join(parts)


if __name__ == "__main__":
    found = [Path(name) for name in sys.argv[1:]] or sorted(Path(__file__).parent.glob("results/*.jsonl"))
    Path(__file__).with_name("RESULTS.md").write_text(main(found))
