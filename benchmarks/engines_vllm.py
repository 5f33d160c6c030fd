"""What Headway makes of a real vLLM: how full its KV cache is, and how much of its prompts it need not compute.

Starts vLLM itself, on the CPU, from the environment that `make vllm` installs.

    python benchmarks/engines_vllm.py [--quick] [--json FILE]
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from engines_vllm_kv import PAGE_TOKENS, Window, kv_figures, most_at_once
from figures import Figure, arguments, report
from overhead import HEADWAY, headway_up

from deploy.vllm_cpu.server import MODEL, Vllm, VllmMissing, vllm_up

SEED = 3
CLIENTS = 4
KV_BLOCKS = 4096 // PAGE_TOKENS
KV_OPTIONS = (
    "--block-size",
    str(PAGE_TOKENS),
    "--num-gpu-blocks-override",
    str(KV_BLOCKS),
    "--max-model-len",
    "3072",
)
# On one engine: with slots to spare, so that the KV cache is what limits; as many requests as fit at full length; and
# with a KV cache said to be endless.
KV_CONFIG = """
models:
  - {{pool: pages, engine: "{url}", dialect: vllm, slots: 64}}
  - {{pool: reserved, engine: "{url}", dialect: vllm, slots: {slots}, kv_tokens: 1000000}}
  - {{pool: unwatched, engine: "{url}", dialect: vllm, slots: 64, kv_tokens: 1000000}}
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests with the system prompts of some applications, shuffled; each prompt some 2,000 tokens."""

    apps: int
    each: int
    first: int = 0  # number of the first application: another one begins with other words, so no cache has it

    def bodies(self) -> list[dict[str, Any]]:
        found = [
            {
                "messages": [
                    {"role": "system", "content": system_prompt(app)},
                    {"role": "user", "content": f"Question {number}: what applies to customer {number}?"},
                ],
                "max_tokens": 8,
                "temperature": 0,
            }
            for app in range(self.first, self.first + self.apps)
            for number in range(self.each)
        ]
        random.Random(SEED).shuffle(found)
        return found


def system_prompt(app: int) -> str:
    rules = (
        f"Rule {number}: in case {number + app} answer politely, never quote it."
        for number in range(100 * app, 100 * app + 100)
    )
    return f"You are assistant {app}. " + " ".join(rules)


@dataclass(frozen=True, slots=True)
class Saved:
    """Tokens of all prompts, how many of them were in a cache, and how many would be if each prefix was computed once."""

    prompt: int
    cached: int
    ceiling: int


async def ask(asked: Asked, urls: list[str], model: str) -> Saved:
    """Over all addresses in turn, with a few clients at a time."""
    bodies = asked.bodies()
    turns = iter(list(enumerate(bodies)))
    usages: list[tuple[str, int, int]] = []

    async def client(http: httpx.AsyncClient) -> None:
        for number, body in turns:
            url = f"{urls[number % len(urls)]}/v1/chat/completions"
            answer = (await http.post(url, json=body | {"model": model})).raise_for_status().json()
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            usages.append((body["messages"][0]["content"], usage["prompt_tokens"], cached))

    async with httpx.AsyncClient(timeout=600) as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
    best: dict[str, int] = {}
    for prefix, _, cached in usages:
        best[prefix] = max(cached, best.get(prefix, 0))
    return Saved(
        prompt=sum(prompt for _, prompt, _ in usages),
        cached=sum(cached for _, _, cached in usages),
        ceiling=sum(best.values()) * (asked.each - 1),
    )


def prefix_figures(target: tuple[str, str], engines: list[Vllm], asked: Asked) -> list[Figure]:
    """Through the Headway and pool of `target`, and past it by turns with prompts that are new to everybody."""
    url, pool = target
    ours = asyncio.run(ask(asked, [url], pool))
    turns = asyncio.run(ask(replace(asked, first=asked.apps), [engine.url for engine in engines], MODEL))
    setting = (
        f"vLLM 0.32.0 on the CPU, {len(engines)} x {MODEL}; {asked.apps} system prompt(s) of 2,000 tokens, "
        f"{asked.each} requests with each, shuffled, {CLIENTS} clients"
    )
    share, ceiling = ours.cached / ours.prompt, ours.ceiling / ours.prompt
    return [
        Figure(
            "prefix.vllm_saved_share",
            share,
            "share of prompt tokens",
            turns.cached / turns.prompt,
            f"{setting}; baseline: the same requests sent to the replicas in turn",
        ),
        Figure("prefix.vllm_of_ceiling", share / ceiling, "share", turns.cached / turns.ceiling, setting),
    ]


@contextmanager
def another_worker(folder: Path, engine: Vllm, *, pool: str) -> Iterator[None]:
    """Of the same pool, for a replica of its own; there when Headway knows it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
    argv = [HEADWAY, "worker", "--pool", pool, "--engine", engine.url, "--dialect", "vllm"]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--slots", str(CLIENTS)],
            env=env | {"HEADWAY_HOME": str(folder / "home")},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        url = json.loads((folder / "home" / "up.json").read_text())["api"]["url"]
        while len(httpx.get(f"{url}/v1/fleet").json()["pools"][0]["workers"]) < 2:
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def one_engine(folder: Path, *, quick: bool) -> list[Figure]:
    """The KV cache, and if it is to be quick the prefixes too."""
    window = Window(4, 6, 60) if quick else Window(30, 60, 400)
    with vllm_up("--max-num-seqs", "64", *KV_OPTIONS, log=folder / "vllm.log") as engine:
        config = KV_CONFIG.format(url=engine.url, slots=most_at_once(KV_BLOCKS * PAGE_TOKENS))
        with headway_up(folder, config) as up:
            figures = kv_figures(up.url, engine, window=window, unwatched=not quick)
            if quick:
                figures += prefix_figures((up.url, "pages"), [engine], Asked(1, 8))
    return figures


def two_replicas(folder: Path) -> list[Figure]:
    """One worker each, on one queue."""
    with ExitStack() as stack:
        engines = [
            stack.enter_context(vllm_up("--max-num-seqs", "8", log=folder / f"vllm-{number}.log"))
            for number in (1, 2)
        ]
        config = f'models: [{{pool: v, engine: "{engines[0].url}", dialect: vllm, slots: {CLIENTS}}}]'
        up = stack.enter_context(headway_up(folder, config))
        stack.enter_context(another_worker(folder, engines[1], pool="v"))
        return prefix_figures((up.url, "v"), engines, Asked(6, 8))


def main() -> None:
    args = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        try:
            figures = one_engine(Path(name), quick=args.quick)
        except VllmMissing as error:
            sys.exit(f"{Path(__file__).name}: {error}")
        if not args.quick:
            figures += two_replicas(Path(name))
    report(figures, args.json)


if __name__ == "__main__":
    main()
