"""Prefill that the engines' caches save on a public trace of conversations, with and without locality in the claim.

The trace (Mooncake's conversation trace: arrival, lengths, hashes of 512-token blocks) is not part of the repository.
Used by `engines.py`.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine_fleet import Shape, Work, engine_fleet
from figures import Figure

from predictor import perf
from workers.capacity import Plan
from workers.engines.sim.replica import Replica
from workers.engines.sim.scheduler import Limits
from workers.engines.sim.sequence import Answer, Prompt, Request

TRACE_BLOCK_TOKENS = 512
CUTS = (
    1,
    2,
    4,
    8,
    32,
)  # blocks: where predictor/prefix.py cuts a text of four bytes a token, but for its first 256 tokens
GPU = "llama-3.1-70b-fp8@4xh200"
WORKERS, SLOTS = 8, 64


def read(trace: Path, rows: int) -> list[dict[str, list[int]]]:
    with gzip.open(trace, "rt") as lines:
        return [json.loads(line) for _, line in zip(range(rows), lines, strict=False)]


def ceiling(rows: list[dict[str, list[int]]]) -> float:
    """What an infinite cache, shared by all and filled at once, would save."""
    known: set[int] = set()
    saved = total = 0
    for row in rows:
        hits = next(
            (n for n, block in enumerate(row["hash_ids"]) if block not in known), len(row["hash_ids"])
        )
        known.update(row["hash_ids"])
        saved += min(hits * TRACE_BLOCK_TOKENS, row["input_length"])
        total += row["input_length"]
    return saved / total


def works(rows: list[dict[str, list[int]]], *, locality: bool) -> Iterator[Work]:
    for n, row in enumerate(rows):
        tokens, output, blocks = row["input_length"], row["output_length"], row["hash_ids"]
        full = tokens // TRACE_BLOCK_TOKENS
        hashes = tuple(block.to_bytes(16, "big") for block in blocks[:full])
        prompt = Prompt(tokens, hashes, tuple(blocks[full:]), b"")
        chain = ",".join(f"{blocks[cut - 1]:08x}" for cut in CUTS if cut <= len(blocks) and cut <= full)
        yield Work(
            row["timestamp"] / 1000,
            Request(str(n), prompt, (Answer(max(1, output), seed=n),)),
            run_s=tokens / 10_000 + output / 50,
            kv_tokens=tokens + output,
            prefix=chain if locality else "",
        )


def saved(rows: list[dict[str, list[int]]], *, locality: bool) -> tuple[float, int]:
    """Share of prompt tokens that were cached, and preemptions by the engines."""
    hardware = perf.load(GPU, kv="fp8")
    kv_tokens = hardware.replica.kv_capacity_tokens()
    limits = Limits(
        kv_tokens=kv_tokens,
        max_model_len=131_072,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=8192,
        block_tokens=TRACE_BLOCK_TOKENS,
    )
    shape = Shape(WORKERS, Plan(SLOTS, kv_tokens=kv_tokens), lambda: Replica(limits, hardware))
    if not locality:
        shape = replace(shape, passing=replace(shape.passing, patience_s=0.0))
    with engine_fleet(shape) as fleet:
        fleet.play(list(works(rows, locality=locality)))
        return fleet.totals("cache_hits") / fleet.totals("cache_queries"), fleet.totals("preemptions")


def prefix(trace: Path, *, quick: bool) -> list[Figure]:
    rows = read(trace, 600 if quick else 1_000_000)
    best = ceiling(rows)
    (near, preempted), (far, _) = saved(rows, locality=True), saved(rows, locality=False)
    kv_tokens = perf.load(GPU, kv="fp8").replica.kv_capacity_tokens()
    setting = (
        f"virtual time, Mooncake conversation trace ({len(rows):,} requests), {WORKERS} x {GPU} with"
        f" {kv_tokens / 1e6:.1f}M tokens of KV, {SLOTS} slots, {preempted} preemptions"
    )
    return [
        Figure(
            "prefix.saved_share", near, "of prompt tokens", far, f"{setting}; baseline: no locality in claim"
        ),
        Figure(
            "prefix.of_ceiling",
            near / best,
            f"of the {100 * best:.1f} % that one infinite cache saves",
            far / best,
            f"{setting}; baseline: no locality in claim",
        ),
    ]
