"""The constants of `predictor/perf_constants.json` from tables of measured kernels. Used by `perf_fit.py`."""

import csv
import gzip
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from least_squares import Row, fit

from predictor.perf import ELEMENTWISE_KERNELS, HEAD_DIM, MODELS, PARALLEL, WEIGHT_BYTES, all_reduce_s, gemm_s

GPUS = {
    "a100": (85_899_345_920, 2.039e12),
    "h100": (85_899_345_920, 3.35e12),
    "h200": (151_397_597_184, 4.8e12),
}
MOST_ROWS = 3000  # of a table; the fit does not change with more
CLOSE = 1.3  # a measured matrix counts if both its sides are within this factor of one that a model has
PROFILED = {  # models of vidur_profiling by GPU; H200 was not profiled
    "a100": ("Meta-Llama-3-8B", "Meta-Llama-3-70B"),
    "h100": ("Llama-2-70b-hf",),
}
NCCL_OF = {"a100": "a100", "h100": "h100", "h200": "h100"}  # by the NVLink generation
SHAPES = {
    "Meta-Llama-3-8B": MODELS["llama-3.1-8b"],
    "Meta-Llama-3-70B": MODELS["llama-3.1-70b"],
    "Llama-2-70b-hf": MODELS["llama-2-70b"],
}

Table = list[dict[str, str]]
Measured = list[tuple[Row, float]]


def table(path: Path) -> Table:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


@dataclass(slots=True)
class Fits:
    """`errors`: median and 90th percentile of the relative error of each fit, on the rows it was fitted on."""

    data: Path
    most_rows: int = MOST_ROWS
    errors: dict[str, tuple[float, float, int]] = field(default_factory=dict)

    def all(self) -> dict[str, Any]:
        gpus = {gpu: self.gpu(gpu, memory) for gpu, (memory, _) in GPUS.items()}
        # H200 is an H100 with faster memory: its element-wise kernels are H100's by the ratio of the bandwidths.
        h100 = gpus["h100"]["elementwise"]
        ratio = GPUS["h100"][1] / GPUS["h200"][1]
        gpus["h200"]["elementwise"] = {"fixed_s": h100["fixed_s"], "byte_s": h100["byte_s"] * ratio}
        return gpus

    def gpu(self, gpu: str, memory: int) -> dict[str, Any]:
        found: dict[str, Any] = {"memory_bytes": memory}
        found["gemm"] = self.gemm(gpu)
        found["prefill_attention"] = self.attention(gpu, "context", _prefill_row, _prefill)
        found["decode_attention"] = self.attention(gpu, "generation", _decode_row, _decode)
        found["all_reduce"] = self.all_reduce(gpu)
        if gpu in PROFILED:
            found["elementwise"] = self.elementwise(gpu)
        return found

    def _fit(
        self,
        name: str,
        model: Callable[[Sequence[float], Row], float],
        start: Sequence[float],
        rows: Measured,
    ) -> list[float]:
        every = max(1, len(rows) // self.most_rows)
        constants = fit(model, start, rows[::every])
        off = sorted(abs(model(constants, row) / measured - 1) for row, measured in rows)
        self.errors[name] = (statistics.median(off), off[int(0.9 * len(off))], len(off))
        return [float(f"{value:.4g}") for value in constants]

    def _table(self, gpu: str, kind: str) -> Table:
        return table(self.data / "aiconfigurator" / f"{gpu}_sxm__{kind}.csv.gz")

    def gemm(self, gpu: str) -> dict[str, dict[str, float]]:
        names = ("fixed_s", "flops_per_s", "bytes_per_s", "sharpness", "activation_s")
        found, rows = {}, self._table(gpu, "gemm")
        for kind, dtype in (("bf16", "bfloat16"), ("fp8", "fp8")):
            width = WEIGHT_BYTES[kind]
            measured = [
                ((float(row["m"]), float(row["n"]), float(row["k"])), float(row["latency"]) / 1000)
                for row in rows
                if row["gemm_dtype"] == dtype
                and _served(int(row["m"]), dtype)
                and _close(int(row["n"]), int(row["k"]))
            ]

            def model(values: Sequence[float], row: Row, width: int = width) -> float:
                return gemm_s(dict(zip(names, values, strict=True)), width, m=row[0], n=row[1], k=row[2])

            if measured:
                start = (5e-6, 6e14 / width, GPUS[gpu][1] * 0.8, 2.0, 1e-13)
                values = self._fit(f"{gpu} {kind} matrix products", model, start, measured)
                found[kind] = dict(zip(names, values, strict=True))
        return found

    def attention(
        self, gpu: str, kind: str, row_of: Callable[[dict[str, str]], Row | None], model: "Attention"
    ) -> dict[str, dict[str, float]]:
        found, rows = {}, self._table(gpu, f"{kind}_attention_llama_heads")
        for kv, dtype in (("bf16", "bfloat16"), ("fp8", "fp8")):
            chosen = [
                row for row in rows if row["kv_cache_dtype"] == dtype and row.get("window_size", "0") == "0"
            ]
            shaped = [(row_of(row), float(row["latency"]) / 1000) for row in chosen]
            measured = [(shape, seconds) for shape, seconds in shaped if shape is not None]
            if measured:
                values = self._fit(f"{gpu} {kv} {model.name} attention", model.time_s, model.start, measured)
                found[kv] = dict(zip(model.constants, values, strict=True))
                if "flop_s" in found[kv]:
                    found[kv]["flops_per_s"] = float(f"{1 / found[kv].pop('flop_s'):.4g}")
        return found

    def all_reduce(self, gpu: str) -> dict[str, dict[str, float]]:
        """Engines send small messages through a kernel of their own within CUDA graphs, and large ones through NCCL."""
        found, own = {}, self._table(gpu, "allreduce")
        nccl = table(self.data / "vidur_profiling" / f"{NCCL_OF[gpu]}_dgx__all_reduce.csv.gz")
        for gpus in ("2", "4", "8"):
            measured: Measured = [
                ((float(row["message_size"]),), float(row["latency"]) / 1000)
                for row in own
                if row["num_gpus"] == gpus
                and row["backend"] == "vllm_graph"
                and 4096 <= int(row["message_size"]) <= 2**21
            ]
            large = sorted(
                (float(row["size"]), float(row["time_stats.all_reduce.median"]) / 1000)
                for row in nccl
                if row["num_workers"] == row["devices_per_node"] == gpus and int(row["size"]) >= 2**23
            )
            measured += [((size,), seconds) for size, seconds in large[:: max(1, len(large) // 12)]]
            values = self._fit(f"{gpu} all-reduce of {gpus}", _all_reduce_s, (5e-6, 1e-11, 0.9), measured)
            found[gpus] = dict(zip(("fixed_s", "byte_s", "power"), values, strict=True))
        return found

    def elementwise(self, gpu: str) -> dict[str, float]:
        """Vidur ran norms and residual additions as separate kernels: five passes over the hidden state, not four."""
        measured: Measured = []
        for name in PROFILED[gpu]:
            shape = SHAPES[name]
            for row in table(self.data / "vidur_profiling" / f"{gpu}__{name}__mlp.csv.gz"):
                tp, tokens = int(row["num_tensor_parallel_workers"]), float(row["num_tokens"])
                moved = tokens * (shape.elementwise_bytes(tp) + 2 * 2 * shape.hidden)
                ops = ("input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act", "add", "add")
                seconds = sum(float(row[f"time_stats.{op}.median"]) for op in ops) / 1000
                measured.append(((moved,), seconds))
        values = self._fit(
            f"{gpu} element-wise kernels",
            lambda c, row: (ELEMENTWISE_KERNELS + 1) * c[0] + row[0] * c[1],
            (3e-6, 1e-12),
            measured,
        )
        return {"fixed_s": values[0], "byte_s": values[1]}


def _served(m: int, dtype: str) -> bool:
    """Up to 512 tokens engines pad to the sizes of their CUDA graphs; prompts above are of any length, and fp8 kernels
    are up to half slower where that is no multiple of a tile. The table has n and n + 1: take what an engine would run."""
    if dtype == "fp8":
        return m <= 16 or (m % 2 == 0) == (m <= 512)
    return m <= 16_384


@cache
def _close(n: int, k: int) -> bool:
    used = {size for model in MODELS.values() for tp in PARALLEL for size in model.products(tp)}
    near = math.log(CLOSE)
    return any(abs(math.log(n / a)) < near and abs(math.log(k / b)) < near for a, b in used)


def _all_reduce_s(values: Sequence[float], row: Row) -> float:
    constants = dict(zip(("fixed_s", "byte_s", "power"), values, strict=True))
    return all_reduce_s(constants, row[0])


@dataclass(frozen=True, slots=True)
class Attention:
    name: str
    constants: tuple[str, ...]
    start: tuple[float, ...]
    time_s: Callable[[Sequence[float], Row], float]


_prefill = Attention(
    "prefill",
    ("fixed_s", "flop_s", "byte_s"),
    (1e-5, 2e-15, 1e-12),
    lambda c, row: c[0] + row[0] * c[1] + row[1] * c[2],
)
_decode = Attention(
    "decode",
    ("fixed_s", "byte_s", "row_s"),
    (1e-5, 4e-13, 2e-8),
    lambda c, row: c[0] + row[0] * c[1] + row[1] * c[2],
)


def _prefill_row(row: dict[str, str]) -> Row | None:
    """(operations, bytes of queries, keys, values and outputs)."""
    batch, tokens = int(row["batch_size"]), int(row["isl"])
    heads, kv_heads = int(row["num_heads"]), int(row["num_key_value_heads"])
    if kv_heads > 8 or tokens < 64 or batch * tokens > 65_536:
        return None
    pairs = batch * tokens * tokens / 2
    return pairs * heads * HEAD_DIM * 4, batch * tokens * (heads + kv_heads) * HEAD_DIM * 4


def _decode_row(row: dict[str, str]) -> Row | None:
    """(bytes of keys and values, sequences times KV heads)."""
    batch, kv_heads, context = int(row["batch_size"]), int(row["num_key_value_heads"]), int(row["step"]) + 1
    if batch > 512 or not 32 <= context <= 40_000:
        return None
    width = 1 if row["kv_cache_dtype"] == "fp8" else 2
    return 2 * batch * context * kv_heads * HEAD_DIM * width, batch * kv_heads
