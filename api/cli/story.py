"""How `headway job show` draws a job's story: a line a step with its place in time, then forecasts beside what came."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.client import printable

Document = dict[str, Any]
BAR_CHARS = 14
RUNNING = ("claimed", "first_token", "succeeded")
BAD = (
    "failed",
    "expired",
    "cancelled",
    "engine_error",
    "engine_busy",
    "worker_died",
    "preempted",
    "handed_back",
)
FORECASTS = {
    "wait_s": "waiting",
    "run_s": "running",
    "prompt_tokens": "tokens in",
    "output_tokens": "tokens out",
}


def show_story(job: Document, console: Console) -> None:
    """In colours, as wide as the terminal; anywhere else one plain line a step."""
    console.print(heading(job), highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print("", timeline(job), "", forecast_table(job), sep="\n", highlight=False)
    else:
        for line in plain(job):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def heading(job: Document) -> Text:
    style = {"succeeded": "bold green", "queued": "bold yellow", "running": "bold cyan"}.get(
        job["status"], "bold red"
    )
    facts = [job["class"], job["pool"], job["endpoint"]]
    degraded = [f"meant for {job['degraded']}"] if job.get("degraded") else []
    return Text.assemble(job["id"], "  ", (job["status"], style), "  ", "  ".join([*facts, *degraded]))


def timeline(job: Document) -> Table:
    """Each step's bar reaches to the next step: what is long is where the time went."""
    steps: Sequence[Document] = job["story"]
    start, end = steps[0]["at"], steps[-1]["at"]
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, width=BAR_CHARS)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        style = "red" if step["event"] in BAD else "green" if step["event"] in RUNNING else "yellow"
        marked = bar(step["at"] - start, following["at"] - start, whole=end - start)
        table.add_row(
            span(step["at"] - start),
            Text(marked, style),
            Text(step["event"], style),
            Text(printable(step["detail"])),
        )
    return table


def bar(start: float, end: float, *, whole: float) -> str:
    """The stretch from `start` to `end` of `whole`, in characters; at least a mark."""
    if whole <= 0:
        return "│"
    first = min(BAR_CHARS - 1, round(start / whole * BAR_CHARS))
    length = round(end / whole * BAR_CHARS) - first
    return " " * first + ("█" * length if length > 0 and end > start else "│")


def forecast_table(job: Document) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("", "forecast", "actual", "off by"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in forecast_rows(job):
        table.add_row(*row)
    return table


def forecast_rows(job: Document) -> Iterator[tuple[str, str, str, str]]:
    for name, words in FORECASTS.items():
        predicted, actual = job["forecast"][name]["predicted"], job["forecast"][name]["actual"]
        write = span if name.endswith("_s") else lambda number: f"{number:,}"
        off = f"{actual / predicted - 1:+.0%}" if predicted and actual is not None else ""
        first, second = ("-" if value is None else write(value) for value in (predicted, actual))
        yield words, first, second, off


def plain(job: Document) -> Iterator[str]:
    start = job["story"][0]["at"]
    for step in job["story"]:
        yield f"{span(step['at'] - start):>9}  {step['event']:<12}  {printable(step['detail'])}"
    for words, predicted, actual, off in forecast_rows(job):
        yield f"{words}: forecast {predicted}, actual {actual}" + (f" ({off})" if off else "")


def span(length_s: float) -> str:
    return f"{length_s:.3f} s" if length_s < 100 else f"{length_s:,.0f} s"
