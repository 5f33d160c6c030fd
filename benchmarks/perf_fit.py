"""Fits the GPU model of `predictor/perf.py` on measured kernels, and states its error against measured engines.

`--write` replaces `predictor/perf_constants.json`; without it the shipped constants are compared with a new fit, and the
run fails if they have drifted apart. The data is not part of the repository: `--data DIR`, or `../shared/data` beside it.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
from figures import Figure, arguments, report
from least_squares import fit
from perf_checks import Run, silicon, splitwise
from perf_engine import through_engine
from perf_kernels import Fits

from predictor import perf

ROOT = Path(__file__).parents[1]
CONSTANTS = ROOT / "predictor" / "perf_constants.json"
DATA = ROOT.parent / "shared" / "data"
NEEDED = ("aiconfigurator", "vidur_profiling", "splitwise_sim")
DRIFT = 0.02
HOST_GROUP = (
    "8b_h100_trtllm"  # the one small model whose rows are many and whose engine leaves gaps on the GPU
)

Errors = list[tuple[float, float]]  # relative errors of TTFT and TPOT, with their sign


def spread(errors: Sequence[float]) -> tuple[float, float, float]:
    """Median and 90th percentile of the size of relative errors, and their median with its sign."""
    sizes = sorted(abs(error) for error in errors)
    return statistics.median(sizes), sizes[int(0.9 * len(sizes))], statistics.median(errors)


def figure(name: str, errors: Sequence[float], setting: str) -> Figure:
    median, p90, bias = spread(errors)
    text = f"{setting}; n {len(errors)}, p90 {p90:.1%}, median with sign {bias:+.1%}"
    return Figure(f"sim.{name}", median, "median relative error", None, text)


def errors(runs: Sequence[Run], host_s: float = 0.0, host_sequence_s: float = 0.0) -> Errors:
    found = []
    for run in runs:
        ttft_s, tpot_s = run.simulated(host_s, host_sequence_s)
        found.append((ttft_s / run.ttft_s - 1, tpot_s / run.tpot_s - 1))
    return found


def against_silicon(data: Path) -> Iterator[Figure]:
    groups = defaultdict[str, list[Run]](list)
    for run in silicon(data):
        groups[run.group].append(run)
    found = {name: errors(runs) for name, runs in sorted(groups.items())}
    vllm = [error for name in ("70b_h100_vllm", "70b_h200_vllm") for error in found[name]]
    text = "Llama-3.1-70B fp8, vLLM, 1-8 H100 and H200, 4-64 callers; no constant fitted on engines; Vidur claims < 9 %"
    yield figure("ttft_median_error", [ttft for ttft, _ in vllm], text)
    yield figure("tpot_median_error", [tpot for _, tpot in vllm], text)
    for name, errs in found.items():
        counted = [e for e, run in zip(errs, groups[name], strict=True) if not run.waits_before_prefill]
        size, gpu, engine = name.split("_")
        text = f"Llama-3.1-{size.upper()} under {engine} on {gpu.upper()}; no constant fitted on engines"
        yield figure(f"ttft_median_error_{name}", [ttft for ttft, _ in counted], text)
        yield figure(f"tpot_median_error_{name}", [tpot for _, tpot in errs], text)
    yield figure(
        "tpot_median_error_all", [t for errs in found.values() for _, t in errs], "every row of the table"
    )
    yield from with_host(groups[HOST_GROUP])


def with_host(runs: list[Run]) -> Iterator[Figure]:
    """Two constants of the engine's host, per step and per sequence, from one half; the error on the other half."""
    half = [((run.simulated()[1], float(run.callers)), run.tpot_s) for run in runs if run.trains]
    host_s, sequence_s = fit(lambda c, row: row[0] + c[0] + row[1] * c[1], (3e-4, 1e-5), half)
    rest = [run for run in runs if not run.trains]
    text = f"half of the configurations fitted: {host_s * 1e6:.0f} us a step, {sequence_s * 1e6:.1f} us a sequence"
    yield figure(
        f"tpot_median_error_{HOST_GROUP}_host", [e for _, e in errors(rest, host_s, sequence_s)], text
    )
    yield figure(
        f"tpot_median_error_{HOST_GROUP}_half", [e for _, e in errors(rest)], "that other half without them"
    )


def with_engine(data: Path, *, quick: bool) -> Iterator[Figure]:
    """The simulated engine in place of the short loop, on rows that it gets through in minutes."""
    vllm = [run for run in silicon(data) if run.engine == "vllm" and run.model == "llama-3.1-70b"]
    runs = [run for run in vllm if run.output == 1024 and run.callers <= (4 if quick else 64)]
    found = [through_engine(run) for run in runs]
    text = "the simulated engine itself, in virtual time: the 70B vLLM rows with 1,024 output tokens"
    pairs = list(zip(found, runs, strict=True))
    yield figure("engine_ttft_median_error", [ttft_s / run.ttft_s - 1 for (ttft_s, _), run in pairs], text)
    yield figure("engine_tpot_median_error", [tpot_s / run.tpot_s - 1 for (_, tpot_s), run in pairs], text)
    apart = [abs(tpot_s / run.simulated()[1] - 1) for (_, tpot_s), run in pairs]
    text = f"largest difference of TPOT between the simulated engine and the loop above, {len(runs)} rows"
    yield Figure("sim.engine_apart_from_loop", max(apart), "relative difference", 0.0, text)


def against_splitwise(data: Path) -> Iterator[Figure]:
    """The host of that engine set the pace of decoding: 30 ms a step on H100 and 45 on A100, whatever the batch."""
    groups = defaultdict[tuple[str, int], Errors](list)
    for batch in splitwise(data):
        prompt_s, token_s = batch.simulated()
        groups[batch.gpu, batch.tp].append((prompt_s / batch.prompt_s - 1, token_s / batch.token_s - 1))
    for (gpu, tp), errs in groups.items():
        text = f"Llama-2-70B fp16, static batches on {tp} {gpu.upper()}, vLLM of 2023 without CUDA graphs"
        yield figure(f"splitwise_prompt_median_error_{gpu}_tp{tp}", [prompt for prompt, _ in errs], text)
        yield figure(f"splitwise_token_median_error_{gpu}_tp{tp}", [token for _, token in errs], text)


def kernels(fits: Fits) -> Iterator[Figure]:
    groups = defaultdict[str, list[tuple[float, float, int]]](list)
    for name, error in fits.errors.items():
        groups["all-reduce" if "all-reduce" in name else name.split(" ", 1)[1]].append(error)
    for name, found in groups.items():
        median, p90, rows = max(found)
        text = f"worst of the GPUs, on the {rows:,} rows it was fitted on; p90 {p90:.1%}"
        yield Figure(
            f"sim.kernel_error_{name.replace(' ', '_')}", median, "median relative error", None, text
        )


def speed(calls: int) -> Figure:
    times = perf.load("llama-3.1-70b-fp8@2xh100")
    begun = time.perf_counter()
    for at in range(calls):
        times.step_s(
            prefill_tokens=at % 4096, prefill_context=500, decode_sequences=32, kv_tokens=40_000 + at
        )
    return Figure(
        "sim.step_call_us", (time.perf_counter() - begun) / calls * 1e6, "us", None, f"{calls:,} calls"
    )


def drift(shipped: Any, fitted: Any, where: str = "") -> list[str]:
    """What differs by more than DRIFT; a constant too small to matter may be anything."""
    if isinstance(fitted, dict):
        if shipped.keys() != fitted.keys():
            return [f"{where}: {sorted(shipped)} shipped, {sorted(fitted)} fitted"]
        return [text for name in fitted for text in drift(shipped[name], fitted[name], f"{where}.{name}")]
    same = abs(shipped - fitted) <= DRIFT * abs(fitted) or max(shipped, fitted) < 1e-15
    return [] if same else [f"{where}: {shipped} shipped, {fitted} fitted"]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", type=Path, default=DATA, help="the folder with the tables of measured times"
    )
    parser.add_argument("--write", action="store_true", help="replace the shipped constants by the new fit")
    options = parser.parse_args()
    if absent := [name for name in NEEDED if not (options.data / name).is_dir()]:
        print(
            f"skipped: no {', '.join(absent)} in {options.data}; give the folder of the measurements with --data"
        )
        return 0
    fits = Fits(options.data, most_rows=1000 if options.quick else 4000)
    fitted = {"gpus": fits.all()}
    if options.write:
        CONSTANTS.write_bytes(orjson.dumps(fitted, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        perf.constants.cache_clear()
    found = [*against_silicon(options.data), *with_engine(options.data, quick=options.quick)]
    found += [*against_splitwise(options.data), *kernels(fits)]
    report([*found, speed(100_000 if options.quick else 1_000_000)], options.json)
    if drifted := [] if options.quick else drift(perf.constants(), fitted):
        print(
            "the shipped constants are not those of this fit (--write replaces them):", *drifted, sep="\n  "
        )
    return bool(drifted)


if __name__ == "__main__":
    sys.exit(main())
