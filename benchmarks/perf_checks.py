"""Step times against what engines measured end to end: the two tables that no constant was fitted on. Used by `perf_fit.py`.

`silicon_llama_h100_h200.csv`: vLLM, TensorRT-LLM and SGLang under a closed loop of callers, replayed by `closed_loop.py`.
The 70B rows are of a published harness (ten prompts a caller, lengths uniform in 80-100 % of the nominal ones, 8,192 or
16,384 tokens a step, KV in fp8 on H200 and bf16 on H100 under vLLM); for the 8B rows only concurrency and nominal
lengths are known. `splitwise_sim`: static batches of a vLLM of 2023, one prompt step and one decode step at a time.
"""

import csv
import random
import statistics
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from closed_loop import Server, closed_loop

from predictor.perf import MODELS, FittedStepTimes, Replica

PROMPTS_PER_CALLER = 10
SEED = 1


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the silicon table: a replica, its load, and what was measured."""

    model: str
    gpu: str
    engine: str
    tp: int
    fp8: bool
    prompt: int
    output: int
    callers: int
    ttft_s: float
    tpot_s: float

    @property
    def group(self) -> str:
        return f"{self.model.rsplit('-', 1)[1]}_{self.gpu}_{self.engine}"

    @property
    def replica(self) -> Replica:
        kv = "fp8" if self.group in ("70b_h200_vllm", "70b_h200_trtllm") else "bf16"
        return Replica(MODELS[self.model], self.gpu, self.tp, "fp8" if self.fp8 else "bf16", kv)

    @property
    def trains(self) -> bool:
        """One half of the configurations; all concurrencies of a configuration are in the same half."""
        name = f"{self.group} {self.tp} {self.prompt} {self.output}"
        return zlib.crc32(name.encode()) % 2 == 0

    @property
    def waits_before_prefill(self) -> bool:
        """TensorRT-LLM held prompts back for 20 steps in these rows (`batch_wait_timeout_iters`): no GPU time."""
        return self.group == "70b_h200_trtllm" and self.prompt == self.output == 1024 and self.tp < 8

    def requests(self) -> list[tuple[int, int]]:
        n = PROMPTS_PER_CALLER * self.callers
        if self.model != "llama-3.1-70b":
            return [(self.prompt, self.output)] * n
        lengths = random.Random(SEED)
        low, high = int(0.8 * self.prompt), int(0.8 * self.output)
        return [(lengths.randint(low, self.prompt), lengths.randint(high, self.output)) for _ in range(n)]

    def simulated(self, host_s: float = 0.0, host_sequence_s: float = 0.0) -> tuple[float, float]:
        """Mean TTFT and TPOT, seconds."""
        times = FittedStepTimes(self.replica, host_s, host_sequence_s)
        budget = 16_384 if self.group == "70b_h200_trtllm" else 8192
        server = Server(times, self.replica.kv_capacity_tokens(), budget)
        return closed_loop(server, self.requests(), callers=self.callers)


def silicon(data: Path) -> list[Run]:
    with (data / "aiconfigurator" / "silicon_llama_h100_h200.csv").open() as file:
        return [_run(row) for row in csv.DictReader(file)]


def _run(row: dict[str, str]) -> Run:
    return Run(
        model="llama-3.1-70b" if "70B" in row["model_path"] else "llama-3.1-8b",
        gpu=row["system"].removesuffix("_sxm"),
        engine=row["backend"],
        tp=int(float(row["tp_size"])),
        fp8=row["precision"] == "fp8",
        prompt=int(row["isl"]),
        output=int(row["osl"]),
        callers=int(float(row["batch_size"])),
        ttft_s=float(row["silicon_ttft_ms"]) / 1000,
        tpot_s=float(row["silicon_tpot_ms"]) / 1000,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """A static batch of splitwise_sim: medians of its repetitions, seconds."""

    gpu: str
    tp: int
    prompt: int
    sequences: int
    output: int
    prompt_s: float
    token_s: float

    def simulated(self) -> tuple[float, float]:
        times = FittedStepTimes(Replica(MODELS["llama-2-70b"], self.gpu, self.tp))
        n = self.sequences
        prompt_s = times.step_s(
            prefill_tokens=n * self.prompt, prefill_context=self.prompt // 2, decode_sequences=0, kv_tokens=0
        )
        held = n * (self.prompt + self.output // 2)
        return prompt_s, times.step_s(prefill_tokens=0, prefill_context=0, decode_sequences=n, kv_tokens=held)


def splitwise(data: Path) -> list[Batch]:
    """Llama-2-70B at full power. TP 2 with 64 sequences did not fit its GPUs: the table's times there are of less."""
    found = defaultdict[tuple[str, int, int, int, int], list[tuple[float, float]]](list)
    with (data / "splitwise_sim" / "perf_model.csv").open() as file:
        for row in csv.DictReader(file):
            tp, sequences = int(row["tensor_parallel"]), int(row["batch_size"])
            if (
                row["model"] == "llama2-70b"
                and not row["hardware"].endswith("-pcap")
                and (tp, sequences) != (2, 64)
            ):
                gpu = row["hardware"].removesuffix("-80gb")
                key = (gpu, tp, int(row["prompt_size"]), sequences, int(row["token_size"]))
                found[key].append((float(row["prompt_time"]) / 1000, float(row["token_time"]) / 1000))
    return [
        Batch(*key, statistics.median(p for p, _ in times), statistics.median(t for _, t in times))
        for key, times in sorted(found.items())
    ]
