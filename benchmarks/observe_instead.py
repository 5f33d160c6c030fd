"""Whether "what it would have been without prefix reuse" is near what it is without. Used by `observe.py`.

The same jobs, a few system prompts in front of short questions, on a simulated engine with its prefix cache and on one without: what
`/v1/usage` says after the first run against what was used in the second.
"""

import asyncio
import random
from typing import Any

import aiohttp
from figures import Figure
from observe_usage import SETTLE_S, WORDS, Job, run_all
from outage import all_up, fleet

ENGINE = ("--speed", "0.3", "--max-num-seqs", "16")
AT_ONCE = 16
SEED = 3


def questions(count: int, *, systems: int) -> list[Job]:
    rng = random.Random(SEED)
    prompts = [" ".join(rng.choices(WORDS, k=1200)) for _ in range(systems)]
    found = []
    for n in range(count):
        question = " ".join(rng.choices(WORDS, k=60))
        messages = [
            {"role": "system", "content": prompts[n * systems // count]},
            {"role": "user", "content": question},
        ]
        body = {"model": "small", "messages": messages, "max_tokens": rng.randint(16, 150)}
        found.append(Job(body, "stream", None))
    return found


async def used(jobs: list[Job], *options: str) -> Any:
    """The usage document after they have run on an engine with `options`."""
    engine = (*ENGINE, *options)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        with fleet({"small": (engine,), "large": (engine,)}) as this:
            await all_up(this, http, {"small": 1, "large": 1})
            await run_all(this.url, http, jobs=jobs, at_once=AT_ONCE)
            await asyncio.sleep(SETTLE_S)
            async with http.get(f"{this.url}/v1/usage") as answer:
                return await answer.json()


async def instead(*, quick: bool) -> list[Figure]:
    """The large pool has one job, of which nothing is cached."""
    count, systems = (100, 20) if quick else (400, 40)
    jobs = questions(count, systems=systems)
    reused, without = await used(jobs), await used(jobs, "--no-prefix-caching")
    measured, total = without["total"]["gpu_seconds"], reused["total"]
    foretold = reused["instead"]["no_prefix_reuse"]["gpu_seconds"]
    setting = (
        f"{count} jobs under {systems} system prompts, {total['cached_tokens'] / total['prompt_tokens']:.0%} of {total['prompt_tokens']:,} "
        f"prompt tokens cached; over the GPU-seconds measured without a cache ({measured:.0f}); baseline: those with it"
    )
    share = round(total["gpu_seconds"] / measured, 3)
    return [Figure("usage.no_prefix_reuse_ratio", round(foretold / measured, 3), "ratio", share, setting)]
