"""What the queue does per second, beside the field's, what it costs, and what becomes of P0 when batch work floods it.

With `--queues DIR` the job queue harness of that folder, with `--gateways DIR` the `mixed` suite of that gateway
harness; both measure Headway and its peers in the same run.

    python benchmarks/queueing.py [--quick] [--json FILE] [--queues DIR] [--gateways DIR]
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from figures import Figure, arguments, report
from queue_costs import all_costs
from virtual_mixed import mixed
from virtual_queue import all_virtual

HERE = Path(__file__).resolve().parent
PYTHON_PEERS = ("celery", "dramatiq", "taskiq", "streaq", "arq")
ROUTERS = ("direct", "vllm-router")
# A short run does not wait for a quiet machine and is not repeated: its ratios are to be believed, no more.
IMPATIENT = "import sys, run; run.QUIET_WAIT_S, run.ATTEMPTS = 1, 1; sys.exit(run.main())"
Row = dict[str, Any]


def harness(folder: Path, options: list[str], *, impatient: bool = False) -> list[Row]:
    """Runs a harness' `run.py` and gives the JSON lines that it prints."""
    start = ["-c", IMPATIENT] if impatient else [str(folder / "run.py")]
    run = subprocess.run(
        [sys.executable, *start, *options], cwd=folder, stdout=subprocess.PIPE, text=True, check=False
    )
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        if "error" in row:
            print(f"{row.get('peer') or row.get('target')}: {row['error']}", file=sys.stderr)
    return [row for row in rows if "error" not in row]


def beside_queues(folder: Path, *, quick: bool) -> list[Figure]:
    ours = str(HERE / "peer_headway.py")
    if quick:
        options = ["--peers", f"{ours},dramatiq", "--jobs", "5000", "--repeats", "1"]
        options += ["--measures", "enqueue,bulk,idle"]
    else:
        options = ["--peers", f"{ours},{','.join(PYTHON_PEERS)},bullmq", "--jobs", "20000", "--repeats", "3"]
    rows = {row["peer"]: row for row in harness(folder, options, impatient=quick)}
    if "headway" not in rows:
        raise RuntimeError("the harness could not measure Headway; its reason is above")
    us = rows.pop("headway")
    setting = (
        f"queue harness, {us['jobs']} jobs of {us['payload']} bytes, {us['workers']} workers, AOF everysec"
    )
    return [*throughput(us, rows, setting), *delays(us, rows, setting)]


def best(rows: Iterable[Row], *path: str, least: bool = False) -> float | None:
    """The best of the rows that have the value at `path`."""
    found = []
    for row in rows:
        value: Any = row
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found.append(float(value))
    return (min(found) if least else max(found)) if found else None


def throughput(us: Row, rows: dict[str, Row], setting: str) -> list[Figure]:
    drain = us["drain_per_s"]
    python = best((rows[n] for n in PYTHON_PEERS if n in rows), "drain_per_s")
    bullmq = best((rows[n] for n in ("bullmq",) if n in rows), "drain_per_s")
    bulk = best(rows.values(), "bulk", "per_s")
    names = ", ".join(f"{n} {r['drain_per_s']:.0f}" for n, r in rows.items() if "drain_per_s" in r)
    figures = [
        Figure("queue.drain_jobs_per_s", drain, "jobs/s", python, f"{setting}; {names}"),
        Figure(
            "queue.enqueue_jobs_per_s",
            us["enqueue_per_s"],
            "jobs/s",
            best(rows.values(), "enqueue_per_s"),
            setting,
        ),
        Figure("queue.bulk_enqueue_jobs_per_s", us["bulk"]["per_s"], "jobs/s", bulk, setting),
    ]
    for name, value, base in (
        ("drain_vs_python_peers", drain, python),
        ("drain_vs_bullmq", drain, bullmq),
        ("bulk_enqueue_vs_peers", us["bulk"]["per_s"], bulk),
    ):
        if base:
            figures.append(Figure(f"queue.{name}", value / base, "times the best of them", 1.0, setting))
    return figures


def delays(us: Row, rows: dict[str, Row], setting: str) -> list[Figure]:
    idle = best(rows.values(), "idle", "p50_ms", least=True)
    figures = [
        Figure("queue.dispatch_ms_p50", us["idle"]["p50_ms"], "ms", idle, f"{setting}; idle, 100 jobs/s")
    ]
    for load in ("steady", "load"):
        if "p50_ms" in us.get(load, {}):
            rate = f"{setting}; at {us[load]['rate']:.0f} jobs/s"
            base = best(rows.values(), load, "p50_ms", least=True)
            figures.append(Figure(f"queue.dispatch_ms_p50_{load}", us[load]["p50_ms"], "ms", base, rate))
    if "recovery_s" in us:
        ours = [trial for kind in us["recovery_s"].values() for trial in kind]
        theirs = [middle(row["recovery_s"]["idle"]) for row in rows.values() if "recovery_s" in row]
        how = f"{setting}; lease 5 s; from kill -9 to the start of the second run, worst of {len(ours)}"
        value, base = seconds(max(ours, key=seconds)), min(theirs, default=None)
        figures.append(
            Figure("queue.kill9_recovery_s", value, "s", base, f"{how}; baseline: the best median, idle")
        )
    return figures


def seconds(trial: float | None) -> float:
    """Less the 2 s that the job runs, to whose end the harness counts. None: it did not come back."""
    return float("inf") if trial is None else trial - 2.0


def middle(trials: list[float | None]) -> float:
    return statistics.median(map(seconds, trials))


def beside_gateways(folder: Path, out: Path, *, quick: bool) -> list[Figure]:
    """Four mock engines, chat and agents over a batch backlog. The rivals: the fastest router, and SMG's priorities."""
    ours = str(HERE / "gateway_target.py")
    targets = (
        f"direct,smg:priority,{ours}" if quick else f"direct,vllm-router:power_of_two,smg:priority,{ours}"
    )
    options = ["--suite", "mixed", "--targets", targets, "--out", str(out), *(["--quick"] if quick else [])]
    rows = {row["target"]: row["mixed"] for row in harness(folder, options) if "mixed" in row}
    us = next((row for target, row in rows.items() if target.startswith("headway")), None)
    if us is None:
        raise RuntimeError("the harness could not measure Headway; its reason is above")
    routers = [row for target, row in rows.items() if target.startswith(ROUTERS)]
    smg, router = rows.get("smg:priority"), best(routers, "makespan_s", least=True)
    setting = f"gateway harness, mixed: {us['ok']} of {us['n']} requests answered, {us['tokens_per_s']:.0f} tokens/s"
    p99, goodput = us["classes"]["P0"]["ttft_s"]["p99"], us["classes"]["P0"]["goodput"]
    theirs = smg["classes"]["P0"] if smg else {"ttft_s": {"p99": None}, "goodput": None}
    figures = [
        Figure(
            "mixed.p0_ttft_p99_s", p99, "s", theirs["ttft_s"]["p99"], f"{setting}; baseline: SMG priority"
        ),
        Figure("mixed.p0_goodput", goodput, "share", theirs["goodput"], f"{setting}; baseline: SMG priority"),
        Figure("mixed.makespan_s", us["makespan_s"], "s", router, f"{setting}; baseline: the fastest router"),
    ]
    if router:
        figures.append(
            Figure("mixed.makespan_vs_best_router", us["makespan_s"] / router, "times", 1.0, setting)
        )
    if smg:
        figures.append(Figure("mixed.p0_p99_vs_smg", p99 / theirs["ttft_s"]["p99"], "times", 1.0, setting))
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--queues", type=Path, help="folder of the job queue harness")
    parser.add_argument("--gateways", type=Path, help="folder of the gateway harness")
    args = parser.parse_args()
    figures = (
        asyncio.run(all_costs(quick=args.quick)) + all_virtual(quick=args.quick) + mixed(quick=args.quick)
    )
    if args.queues:
        figures += beside_queues(args.queues.resolve(), quick=args.quick)
    if args.gateways:
        with tempfile.TemporaryDirectory() as out:
            figures += beside_gateways(args.gateways.resolve(), Path(out), quick=args.quick)
    report(figures, args.json)


if __name__ == "__main__":
    main()
