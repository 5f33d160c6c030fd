"""What Headway adds to the engine it stands in front of, and what it costs to have it running.

An embedded llama.cpp of its own process answers the same requests directly and through Headway, in turns. With
`--gateways DIR` also the `overhead` suite of that gateway harness, Headway beside LiteLLM and no gateway.

    python benchmarks/overhead.py [--quick] [--json FILE] [--gateways DIR]
"""

import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from figures import Figure, arguments, report

HERE = Path(__file__).resolve().parent
HEADWAY = Path(sys.executable).with_name("headway")
SEED = 1
SLOTS = 8
_numbers = itertools.count(100_000)
PROMPTS = ("Name three rivers.", "What is a queue?", "Say hello.", "Why is the sky blue?", "Count to five.")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: the engine itself, or Headway in front of it."""

    url: str
    model: str
    key: str = "none"


@dataclass(frozen=True, slots=True)
class Up:
    """A running Headway. `ready_s`: from the command to ready."""

    url: str
    pids: list[int]
    ready_s: float


@contextmanager
def headway_up(folder: Path, config: str = "") -> Iterator[Up]:
    (folder / "headway.yaml").write_text(config)
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
    env |= {"HEADWAY_HOME": str(folder / "home"), "HEADWAY_PORT": "0"}
    begun = time.perf_counter()
    subprocess.run([HEADWAY, "up", "--detach"], env=env, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    ready_s = time.perf_counter() - begun
    try:
        up = json.loads((folder / "home" / "up.json").read_text())
        pids = [part["pid"] for part in up["parts"]]
        yield Up(up["api"]["url"], [*pids, psutil.Process(pids[0]).ppid()], ready_s)
    finally:
        subprocess.run([HEADWAY, "down"], env=env, check=True, cwd=folder, stdout=subprocess.DEVNULL)


@contextmanager
def engine_up() -> Iterator[Target]:
    """llama.cpp with the embedded model, in a process of its own that both sides talk to."""
    argv = [sys.executable, str(HERE / "engine_server.py"), str(SLOTS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Target(**json.loads(process.stdout.readline()))
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class Answer:
    """`ttft_s`: from sending to the first content; `tokens`: as the engine counted."""

    ttft_s: float
    tokens: int


async def chat(session: aiohttp.ClientSession, target: Target, prompt: str, *, max_tokens: int) -> Answer:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {target.key}"}
    begun = time.perf_counter()
    first, tokens = 0.0, 0
    async with session.post(f"{target.url}/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if not first and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - begun
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    return Answer(first, tokens)


@dataclass(frozen=True, slots=True)
class Round:
    """TTFT of every request, seconds; tokens per second over all clients."""

    ttfts_s: list[float]
    tokens_per_s: float


async def play(target: Target, *, clients: int, requests: int, max_tokens: int) -> Round:
    rng = random.Random(SEED)
    # a word of its own in front, so that nobody finds the prompt in the engine's prefix cache
    prompts = iter([f"{next(_numbers)}: {rng.choice(PROMPTS)}" for _ in range(requests)])
    answers: list[Answer] = []

    async def client(session: aiohttp.ClientSession) -> None:
        while prompt := next(prompts, ""):
            answer = await chat(session, target, prompt, max_tokens=max_tokens)
            answers.append(answer)

    # a connection per request on both sides: llama.cpp closes its own after a stream, and says keep-alive
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=300)
    ) as session:
        begun = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        took = time.perf_counter() - begun
    return Round([answer.ttft_s for answer in answers], sum(answer.tokens for answer in answers) / took)


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def compare(
    targets: tuple[Target, Target], *, clients: int, rounds: int, requests: int
) -> tuple[list[Round], list[Round]]:
    """Engine and Headway in turns, so that the machine's drift meets both. The first round of each warms up."""
    results: tuple[list[Round], list[Round]] = ([], [])
    for number in range(rounds + 1):
        for target, into in zip(targets, results, strict=True):
            result = asyncio.run(play(target, clients=clients, requests=requests, max_tokens=32))
            if number:
                into.append(result)
    return results


def overhead(engine: Target, headway: Target, *, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    for clients in (1, 8):
        rounds, requests = (1, 10 if clients == 1 else 24) if quick else (2, 30 if clients == 1 else 96)
        sides = compare((engine, headway), clients=clients, rounds=rounds, requests=requests)
        setting = (
            f"streaming, {clients} client(s), {rounds} rounds of {requests} requests, llama.cpp, seed {SEED}"
        )
        suffix = "" if clients == 1 else "_c8"
        figures += [
            added_ttft(sides, q, name=f"overhead.ttft_added_ms_p{round(q * 100)}{suffix}", setting=setting)
            for q in (0.5, 0.99)
        ]
        base, ours = (statistics.median(r.tokens_per_s for r in side) for side in sides)
        if clients == 8:
            figures.append(
                Figure("overhead.tokens_per_s_ratio", ours / base, "of the engine's own", 1.0, setting)
            )
    return figures


def added_ttft(sides: tuple[list[Round], list[Round]], q: float, *, name: str, setting: str) -> Figure:
    """Difference of the quantiles over all rounds, in ms; the baseline is the engine's own."""
    base, ours = (quantile([t * 1000 for r in side for t in r.ttfts_s], q) for side in sides)
    return Figure(name, ours - base, "ms over the engine's own", base, setting)


def rss_mb(pids: list[int]) -> float:
    """Proportional set size: pages that processes share count once."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids) / 2**20


def footprint(folder: Path, *, quick: bool) -> list[Figure]:
    """`up.ready_s` with the embedded engines, caches warm: the median after a first start that does not count."""
    times = []
    for _ in range(2 if quick else 4):
        with headway_up(folder) as up:
            times.append(up.ready_s)
    ready_s = statistics.median(times[1:])
    return [
        Figure(
            "up.ready_s", ready_s, "s", times[0], "headway up, 2 embedded engines; baseline: the first start"
        )
    ]


def against_engine(folder: Path, *, quick: bool) -> list[Figure]:
    with engine_up() as engine:
        config = {
            "pool": "m",
            "engine": engine.url,
            "dialect": "llamacpp",
            "slots": SLOTS,
            "api_key": engine.key,
        }
        with headway_up(folder, json.dumps({"models": [config]})) as up:
            figures = overhead(engine, Target(up.url, "m"), quick=quick)
            memory = rss_mb(up.pids)
    setting = "all parts of headway up with 1 pool whose engine runs elsewhere; PSS after the load"
    return [*figures, Figure("up.rss_mb", memory, "MiB", None, setting)]


def against_gateways(harness: Path, folder: Path, *, quick: bool) -> list[Figure]:
    """The `overhead` suite of the gateway harness; LiteLLM is its slowest and most used peer."""
    out = folder / "gateways"
    argv = [
        sys.executable,
        str(harness / "run.py"),
        "--suite",
        "overhead",
        "--out",
        str(out),
        *(["--quick"] if quick else []),
    ]
    argv += ["--targets", f"direct,litellm:least-busy,{HERE / 'gateway_target.py'}"]
    run = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True, cwd=harness)
    rows: dict[str, dict[str, Any]] = {}
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rows[str(row["target"]).partition(":")[0]] = row["overhead"]
    ours, lite = rows["headway-here"], rows["litellm"]
    setting = "gateway harness, suite overhead: instant engines, gateway and engines on the same 2 cores; baseline: LiteLLM"
    added = (row["vs_direct"]["added_p50_ms"] for row in (ours, lite))
    figures = [Figure("gateway.added_ms_p50", next(added), "ms", next(added), setting)]
    for name, key, unit in (
        ("stream_tokens_per_s", "stream_tokens_per_s", "tokens/s"),
        ("rps", "rps", "requests/s"),
    ):
        figures.append(Figure(f"gateway.{name}", ours[key], unit, lite[key], setting))
    return [*figures, Figure("gateway.rps_vs_litellm", ours["rps"] / lite["rps"], "times", None, setting)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gateways", type=Path, help="folder of the gateway harness")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.gateways:
            report(against_gateways(args.gateways.resolve(), folder, quick=args.quick), args.json)
        report(against_engine(folder, quick=args.quick), args.json)
        report(footprint(folder, quick=args.quick), args.json)


if __name__ == "__main__":
    main()
