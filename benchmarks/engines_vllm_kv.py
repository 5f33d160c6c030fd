"""How full Headway keeps a vLLM's KV cache: the ledger of pages against room for the longest answer. See engines_vllm.py."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import httpx
from figures import Figure

from deploy.vllm_cpu.server import Vllm

PAGE_TOKENS = 32  # the least that vLLM's CPU kernels take; 16 is usual on GPUs
# Callers allow much and get little: with this stop the model wrote 76 tokens at the median, 512 one time in twelve.
MAX_TOKENS = 512
STOP = ["\n\n"]
PROMPT_TOKENS = 45
QUESTIONS = (
    "Write about the history of {} bridges.",
    "Explain {} ways to cook rice.",
    "Tell a story with {} animals.",
    "What is special about the number {}?",
    "Describe a city with {} inhabitants.",
    "Why would someone walk {} miles?",
)
STEP_S = 0.2


@dataclass(frozen=True, slots=True)
class Window:
    """`ramp_s` is not measured; `jobs` are more than can end meanwhile."""

    ramp_s: float
    measured_s: float
    jobs: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What vLLM said of itself meanwhile. `used_share`: of its KV blocks, those that running requests hold."""

    used_share: float
    most_used_share: float
    running: float
    preemptions: float
    tokens_per_s: float


def most_at_once(kv_tokens: int) -> int:
    """Requests whose longest answers all fit, in whole pages."""
    each = -(-(PROMPT_TOKENS + MAX_TOKENS) // PAGE_TOKENS) * PAGE_TOKENS
    return kv_tokens // each


def measure(url: str, engine: Vllm, pool: str, *, window: Window) -> Seen:
    """Fills the pool's queue, looks at the engine, and calls off what is left."""
    with httpx.Client(base_url=url, timeout=60) as client:
        jobs = [submit(client, pool, number) for number in range(window.jobs)]
        time.sleep(window.ramp_s)
        seen = watch(engine, window)
        for job_id in reversed(jobs):
            client.delete(f"/v1/jobs/{job_id}")
    while engine.metrics()["num_requests_running"]:
        time.sleep(STEP_S)
    return seen


def submit(client: httpx.Client, pool: str, number: int) -> str:
    content = QUESTIONS[number % len(QUESTIONS)].format(number + 2)
    body: dict[str, Any] = {"model": pool, "messages": [{"role": "user", "content": content}], "seed": number}
    body |= {"max_tokens": MAX_TOKENS, "stop": STOP, "temperature": 1.0, "class": "P1"}
    return str(client.post("/v1/jobs", json=body).raise_for_status().json()["id"])


def watch(engine: Vllm, window: Window) -> Seen:
    begun, first = time.monotonic(), engine.metrics()
    looks = [first]
    while time.monotonic() < begun + window.measured_s:
        time.sleep(STEP_S)
        looks.append(engine.metrics())
    last, took_s = looks[-1], time.monotonic() - begun
    shares = [look["kv_cache_usage_perc"] for look in looks]
    return Seen(
        used_share=statistics.fmean(shares),
        most_used_share=max(shares),
        running=statistics.fmean(look["num_requests_running"] for look in looks),
        preemptions=last["num_preemptions_total"] - first["num_preemptions_total"],
        tokens_per_s=(last["generation_tokens_total"] - first["generation_tokens_total"]) / took_s,
    )


def kv_figures(url: str, engine: Vllm, *, window: Window, unwatched: bool) -> list[Figure]:
    """The ledger of pages; room for the longest answers, as without pages; and vLLM left to itself (`unwatched`)."""
    reserved = measure(url, engine, "reserved", window=window)
    pages = measure(url, engine, "pages", window=window)
    alone = measure(url, engine, "unwatched", window=window) if unwatched else None
    setting = (
        f"vLLM 0.32.0 on the CPU, KV cache of 4,096 tokens in pages of {PAGE_TOKENS}, prompts of some {PROMPT_TOKENS} "
        f"tokens, answers of at most {MAX_TOKENS} that end early, queue never empty, {window.measured_s:g} s; "
        f"{pages.running:.1f} against {reserved.running:.1f} requests at once"
    )
    most = f"{setting}; at most {pages.most_used_share:.0%} in use; baseline: without a ledger, 64 at once"
    return [
        Figure("kv.vllm_live_share_paged", pages.used_share, "share of KV", reserved.used_share, setting),
        Figure("kv.vllm_live_share_reserved", reserved.used_share, "share of KV", None, setting),
        Figure("kv.vllm_preemptions", pages.preemptions, "requests", alone and alone.preemptions, most),
        Figure("kv.vllm_tokens_per_s", pages.tokens_per_s, "tokens/s", reserved.tokens_per_s, setting),
    ]
