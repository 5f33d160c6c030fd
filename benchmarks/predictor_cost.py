"""What a request costs on a measured GPU, from its token counts: the yardstick of "cost within 20 %"."""

from functools import cache

import numpy as np

from predictor.perf import load
from predictor.train.rows import Floats

GPU = "llama-3.1-70b-fp8@2xh100"
BESIDE = 32  # sequences that decode at the same time, of which each pays its share of a step


def gpu_s(prompt: Floats, output: Floats) -> Floats:
    """Seconds of the replica that a request takes from others: its prefill, and its share of every step it decodes in."""
    return _prefill_s(prompt) + output * _step_s(prompt + output / 2) / BESIDE


def run_s(prompt: Floats, output: Floats) -> Floats:
    """Seconds from claim to last token beside BESIDE - 1 others: its prefill, and every step it decodes in."""
    return _prefill_s(prompt) + output * _step_s(prompt + output / 2)


def _prefill_s(prompt: Floats) -> Floats:
    return np.interp(prompt, *_prefill_table())


def _step_s(kv: Floats) -> Floats:
    return np.interp(kv, *_step_table())


@cache
def _prefill_table() -> tuple[list[int], list[float]]:
    gpu, sizes = load(GPU), [1, *range(256, 32_769, 256)]
    return sizes, [
        gpu.step_s(prefill_tokens=n, prefill_context=n // 2, decode_sequences=0, kv_tokens=0) for n in sizes
    ]


@cache
def _step_table() -> tuple[list[int], list[float]]:
    """By what each sequence has in the cache; linear in between."""
    gpu, sizes = load(GPU), [1, 65_536]
    return sizes, [
        gpu.step_s(prefill_tokens=0, prefill_context=0, decode_sequences=BESIDE, kv_tokens=BESIDE * n)
        for n in sizes
    ]
