"""How long callers wait for a cascade: a whole Headway, a simulated 8B as the small model and a simulated 70B as the large.

The same questions come at the same moments to three models: the large pool by itself, a route without a cascade, and one
with a cascade that gives the large model the same share of them. Real time; used by `cascade.py`.
"""

import asyncio
import contextlib
import json
import math
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import aiohttp
from cascade_cases import facts, finds, sums
from figures import Figure
from overhead import HEADWAY, headway_up, quantile

from broker.route_config import RouteConfig, TargetConfig
from predictor.prompt_types import TYPES
from predictor.router import shared_router

SMALL, LARGE = "llama-3.1-8b-bf16@1xh100", "llama-3.1-70b-bf16@2xh100"
SLOTS = 16
MEDIAN_TOKENS, LONGEST_TOKENS = 60, 200
PER_S = 6.0  # requests; of which the large model alone can answer some 8
SHARE = 0.3  # of the large model, in both routes
WINDOW = 16
SEED = 1
MODES = ("large", "routed", "cascaded")


@dataclass(frozen=True, slots=True)
class Ask:
    at_s: float
    prompt: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Got:
    """Seconds from sending to the first text and to the end; the pool that answered."""

    ttft_s: float
    total_s: float
    pool: str


def latency(*, quick: bool) -> list[Figure]:
    asks = questions(12 if quick else 240)
    rounds = 1 if quick else 3
    got: dict[str, list[Got]] = {mode: [] for mode in MODES}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = [stack.enter_context(simulated(gpu)) for gpu in (SMALL, LARGE)]
        written = config(*engines, prompts=[ask.prompt for ask in asks])
        url = stack.enter_context(headway_up(folder, written)).url
        asyncio.run(served(url))
        for mode in MODES:  # warms up
            asyncio.run(play(url, mode, asks=asks[: len(asks) // 8]))
        for mode in MODES * rounds:
            got[mode] += asyncio.run(play(url, mode, asks=asks))
    return figures(got)


@contextlib.contextmanager
def simulated(gpu: str) -> Iterator[str]:
    """The engine's address."""
    argv = [HEADWAY, "sim-engine", "--port", "0", "--gpu", gpu, "--max-num-seqs", str(SLOTS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()


def questions(count: int) -> list[Ask]:
    rng, at_s, found = random.Random(SEED), 0.0, []
    known = [*facts(), *sums(), *finds()]
    for question in rng.sample(known, count):
        at_s += rng.expovariate(PER_S)
        tokens = round(MEDIAN_TOKENS * rng.lognormvariate(0, 0.6))
        found.append(Ask(at_s, question.prompt, min(LONGEST_TOKENS, max(WINDOW, tokens))))
    return found


def config(small: str, large: str, *, prompts: list[str]) -> str:
    """The routes' share of the large model is set by what the router says of these very prompts, and by the floor.

    The simulated engine's log-probabilities are even between 0 and -3, so their mean over the window is nearly normal.
    """
    mean = NormalDist(-1.5, 3.0 / math.sqrt(12 * WINDOW))
    cascade = {
        "types": [str(kind) for kind in TYPES],
        "window": WINDOW,
        "floor": math.exp(mean.inv_cdf(SHARE)),
    }
    pair: dict[str, object] = {"small": "small", "large": "large", "sticky_s": 0, "slo_s": 60}
    routed = pair | {"name": "routed", "target": {"share_large": target(prompts)}, "escalate": False}
    cascaded = pair | {"name": "cascaded", "target": {"share_large": 0.0}, "cascade": cascade}
    models = [
        {"pool": pool, "engine": url, "dialect": "vllm", "slots": SLOTS}
        for pool, url in (("small", small), ("large", large))
    ]
    return json.dumps({"models": models, "routes": [routed, cascaded]})


def target(prompts: list[str]) -> float:
    """The `share_large` by which the product's router sends SHARE of these prompts to the large pool."""
    router = shared_router()
    chances = [router.look({"messages": [{"role": "user", "content": text}]}).p for text in prompts]

    def miss(share: float) -> float:
        route = RouteConfig(name="r", small="s", large="l", target=TargetConfig(share_large=share))
        threshold = router.rule(route).threshold
        return abs(sum(p < threshold for p in chances) / len(chances) - SHARE)

    return min((percent / 100 for percent in range(101)), key=miss)


async def served(url: str) -> None:
    """Waits until both pools have a worker."""
    async with aiohttp.ClientSession(url) as session:
        for pool in ("small", "large"):
            while not await answers(session, pool):  # noqa: ASYNC110 - as a caller would
                await asyncio.sleep(0.2)


async def answers(session: aiohttp.ClientSession, model: str) -> bool:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    async with session.post("/v1/chat/completions", json=body) as got:
        return got.ok


async def play(url: str, model: str, *, asks: list[Ask]) -> list[Got]:
    """Each at its moment, whatever the others do."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        begun = time.perf_counter()

        async def one(ask: Ask) -> Got:
            await asyncio.sleep(begun + ask.at_s - time.perf_counter())
            return await answer(session, model, ask=ask)

        return await asyncio.gather(*map(one, asks))


async def answer(session: aiohttp.ClientSession, model: str, *, ask: Ask) -> Got:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_tokens": ask.tokens,
        "ignore_eos": True,
        "stream": True,
    }
    begun, first = time.perf_counter(), 0.0
    async with session.post("/v1/chat/completions", json=body) as got:
        got.raise_for_status()
        async for line in got.content:
            if not first and line.startswith(b"data: {") and says(json.loads(line[6:])):
                first = time.perf_counter() - begun
        return Got(first, time.perf_counter() - begun, got.headers["x-headway-pool"])


def says(chunk: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in chunk["choices"])


def figures(got: dict[str, list[Got]]) -> list[Figure]:
    """Ratios, for the machine's other work meets all three alike. Baseline: routing alone is 1."""
    count = len(got["large"])
    shares = {mode: sum(each.pool == "large" for each in got[mode]) / count for mode in MODES}
    setting = (
        f"whole Headway, real time, {SMALL} and {LARGE} simulated, {SLOTS} slots each, {count} streamed questions,"
        f" {PER_S:g}/s, answers around {MEDIAN_TOKENS} tokens, verdict on {WINDOW} tokens; the large model answers"
        f" {shares['routed']:.0%} by routing, {shares['cascaded']:.0%} by the cascade"
    )
    found = []
    for what, q in (("ttft", 0.5), ("ttft", 0.99), ("total", 0.5), ("total", 0.99)):
        large, routed, cascaded = (
            quantile([getattr(each, f"{what}_s") for each in got[mode]], q) for mode in MODES
        )
        seen = f"{setting}; cascade {cascaded * 1000:.0f} ms, routing {routed * 1000:.0f}, large {large * 1000:.0f}"
        name = f"cascade.{what}_p{round(100 * q)}"
        found += [
            Figure(f"{name}_ratio", cascaded / routed, "times routing alone", 1.0, seen),
            Figure(f"{name}_vs_large", cascaded / large, "times the large model alone", 1.0, seen),
        ]
    return found
