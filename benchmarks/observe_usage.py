"""Whether sums agree: what `/v1/usage` and `/metrics` say was used, and what the engines themselves have counted. Used by `observe.py`.

Three simulated engines in two pools, each a process; one job in ten is cancelled, at any moment: by its caller's leaving in the middle
of a stream, or before a whole answer has come, or by DELETE. Counted are tokens and the seconds in which an engine had anything to do.
"""

import asyncio
import contextlib
import random
import re
from dataclasses import dataclass

import aiohttp
from figures import Figure
from outage import Fleet, all_up, fleet

ENGINE = ("--speed", "0.5", "--output-tokens", "200", "--max-num-seqs", "16")
AT_ONCE = 48
CANCELLED_OF = 10
SEED = 7
SETTLE_S = 2.5  # workers add to the books once a second
WORDS = ("of", "the", "quick", "brown", "elephant", "jumps", "over", "lazy", "rivers", "and", "mountains")
SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
KINDS = ("prompt_tokens", "output_tokens", "gpu_seconds")
AT_ENGINES = dict(
    zip(
        KINDS,
        ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "headway_sim_busy_seconds_total"),
        strict=True,
    )
)
Sums = dict[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """`leaves_s`: after its first byte, or after its submission where it has none; None: its caller waits for the end."""

    body: dict[str, object]
    way: str  # stream, whole or poll
    leaves_s: float | None


def jobs(count: int) -> list[Job]:
    rng, found = random.Random(SEED), []
    for n in range(count):
        words = rng.choices(WORDS, k=round(rng.lognormvariate(4.5, 1.0)))
        body: dict[str, object] = {"model": rng.choice(("small", "small", "large"))}
        body |= {
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": rng.randint(16, 400),
        }
        leaves_s = rng.uniform(0.0, 1.2) if n % CANCELLED_OF == 0 else None
        found.append(Job(body, rng.choice(("stream", "whole", "poll")), leaves_s))
    return found


async def stream(url: str, http: aiohttp.ClientSession, job: Job) -> None:
    async with http.post(f"{url}/v1/chat/completions", json=job.body | {"stream": True}) as answer:
        answer.raise_for_status()
        if job.leaves_s is None:
            await answer.read()
        else:
            await answer.content.readany()
            await asyncio.sleep(job.leaves_s)
            answer.close()


async def whole(url: str, http: aiohttp.ClientSession, job: Job) -> None:
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(job.leaves_s),
            http.post(f"{url}/v1/chat/completions", json=job.body) as answer,
        ):
            answer.raise_for_status()
            await answer.read()


async def poll(url: str, http: aiohttp.ClientSession, job: Job) -> None:
    async with http.post(f"{url}/v1/jobs", json=job.body | {"class": "P1"}) as answer:
        answer.raise_for_status()
        place = f"{url}/v1/jobs/{(await answer.json())['id']}"
    if job.leaves_s is not None:
        await asyncio.sleep(job.leaves_s)
        await http.delete(place)
        return
    async with http.get(place, params={"wait": 60}) as answer:
        assert (await answer.json())["status"] == "succeeded"


WAYS = {"stream": stream, "whole": whole, "poll": poll}


async def run_all(url: str, http: aiohttp.ClientSession, *, jobs: list[Job], at_once: int = AT_ONCE) -> None:
    room = asyncio.Semaphore(at_once)

    async def one(job: Job) -> None:
        async with room:
            await WAYS[job.way](url, http, job)

    await asyncio.gather(*(one(job) for job in jobs))


async def samples(http: aiohttp.ClientSession, url: str) -> list[tuple[str, str, float]]:
    """Name, labels and value of what a page of metrics shows."""
    async with http.get(f"{url}/metrics") as page:
        return [(name, labels, float(value)) for name, labels, value in SAMPLE.findall(await page.text())]


async def at_engines(this: Fleet, http: aiohttp.ClientSession) -> Sums:
    pages = [await samples(http, engine) for engine in this.engines]
    return {
        kind: sum(value for page in pages for name, _, value in page if name == family)
        for kind, family in AT_ENGINES.items()
    }


async def in_metrics(this: Fleet, http: aiohttp.ClientSession) -> Sums:
    """Also how many jobs were cancelled before they had ended."""
    page = await samples(http, this.url)

    def total(family: str, label: str = "") -> float:
        return sum(value for name, labels, value in page if name == family and label in labels)

    return {
        "prompt_tokens": total("headway_tokens_total", 'kind="prompt"'),
        "output_tokens": total("headway_tokens_total", 'kind="output"'),
        "gpu_seconds": total("headway_gpu_seconds_total"),
        "cancelled": total("headway_jobs_total", 'status="cancelled"'),
    }


async def in_usage(this: Fleet, http: aiohttp.ClientSession) -> Sums:
    async with http.get(f"{this.url}/v1/usage") as answer:
        total = (await answer.json())["total"]
    return {kind: float(total[kind]) for kind in KINDS}


async def usage(*, quick: bool) -> list[Figure]:
    """The largest deviation of any of the sums from the engines' own, as a share of that."""
    count = 150 if quick else 1000
    with fleet({"small": (ENGINE, ENGINE), "large": (ENGINE,)}) as this:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            await all_up(this, http, {"small": 2, "large": 1})
            await run_all(this.url, http, jobs=jobs(count))
            await asyncio.sleep(SETTLE_S)
            engines, shown = await at_engines(this, http), await in_metrics(this, http)
            told = await in_usage(this, http)
    off = {kind: max(abs(sums[kind] / engines[kind] - 1) for sums in (shown, told)) for kind in KINDS}
    setting = (
        f"{count} jobs on 3 simulated engines in 2 pools, {AT_ONCE} at once, {shown['cancelled']:.0f} of them cancelled in time; "
        f"/v1/usage and /metrics against the engines' counters ({', '.join(f'{engines[kind]:,.0f} {kind}' for kind in KINDS)})"
    )
    return [
        Figure("usage.error_share", round(max(off.values()), 5), "share", None, setting),
        *(Figure(f"usage.error_share.{kind}", round(off[kind], 5), "share", None, setting) for kind in KINDS),
    ]
