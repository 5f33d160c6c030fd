"""Busy slots and speed of an engine behind a running Headway worker, in real time. Used by `engines.py`.

The worker claims as slots free; batch-at-a-time is the same jobs, submitted in batches of the engine's slots, of which the
next comes when the last one has ended. All jobs are known to take as long as each other, so they go as they came.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Figure
from own_redis import own_redis

from broker.connection import Pipe
from broker.job import Forecast, JobView, ServiceClass, Status, Submission, new_job_id
from broker.producer import Producer

POOL = "live"
HEADWAY = Path(sys.executable).with_name("headway")
SEED = 1
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """An engine and what it is given to do. `median_tokens`: of the answers, which are log-normal (sigma 0.89)."""

    name: str
    slots: int
    jobs: int
    prompt_words: int
    median_tokens: int
    longest_tokens: int
    simulated: str = ""  # the GPU; empty: llama.cpp inside the worker


@contextlib.contextmanager
def simulated(target: Target) -> Iterator[tuple[str, ...]]:
    """The worker's arguments for it."""
    argv = [HEADWAY, "sim-engine", "--port", "0", "--gpu", target.simulated]
    argv += ["--scheduling-policy", "priority", "--max-num-seqs", str(target.slots)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            yield "--engine", url, "--dialect", "vllm"
        finally:
            process.terminate()


@contextlib.contextmanager
def worker(target: Target, redis_url: str) -> Iterator[None]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        engine = stack.enter_context(simulated(target)) if target.simulated else ("--engine", "llamacpp")
        argv = [HEADWAY, "worker", "--pool", POOL, "--slots", str(target.slots), *engine]
        env = inherited | {
            "HEADWAY_HOME": folder,
            "HEADWAY_REDIS_URL": redis_url,
            "HEADWAY_LOG_LEVEL": "error",
        }
        process = stack.enter_context(subprocess.Popen(argv, env=env, cwd=folder))
        try:
            yield
        finally:
            process.terminate()


def jobs(target: Target) -> list[Submission]:
    rng, found = random.Random(SEED), []
    for n in range(target.jobs):
        tokens = min(target.longest_tokens, max(1, round(target.median_tokens * rng.lognormvariate(0, 0.89))))
        prompt = f"{n} " + " ".join(rng.choices(("queue", "engine", "token", "batch"), k=target.prompt_words))
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        found.append(
            Submission(
                new_job_id(POOL),
                ServiceClass.P2,
                "/v1/completions",
                json.dumps(body).encode(),
                Forecast(target.prompt_words, tokens, 1.0),
                deadline_s=86_400.0,
            )
        )
    return found


async def ended(producer: Producer, some: Sequence[Submission]) -> list[JobView]:
    """The records of the jobs, once all have ended."""
    found: list[JobView] = []
    for job in some:
        while not (view := await producer.get(job.job_id)).status.terminal:  # noqa: ASYNC110 - as a poller would
            await asyncio.sleep(LOOK_S)
        found.append(view)
    return found


async def measure(target: Target, *, batch: int) -> tuple[float, float]:
    """Share of busy slots until the last claim, and tokens a second until the last end."""
    todo, views = jobs(target), list[JobView]()
    with own_redis() as url, worker(target, url):
        pipe = Pipe(url)
        producer = Producer(pipe)
        for at in range(0, len(todo), batch):
            await producer.submit_bulk(todo[at : at + batch])
            views += await ended(producer, todo[at : at + batch])
        await pipe.close()
    if lost := [view.job_id for view in views if view.status is not Status.SUCCEEDED]:
        raise RuntimeError(f"{len(lost)} of {len(views)} jobs did not succeed: {lost[:3]}")
    spans = [(view.claimed or 0.0, view.finished or 0.0) for view in views]
    begin, last = min(begun for begun, _ in spans), max(begun for begun, _ in spans)
    busy_s = sum(min(end, last) - begun for begun, end in spans)
    tokens = sum(view.usage["completion_tokens"] for view in views)
    return busy_s / (last - begin) / target.slots, tokens / (max(end for _, end in spans) - begin)


def compare(target: Target, prefix: str) -> list[Figure]:
    busy, speed = asyncio.run(measure(target, batch=target.jobs))
    static_busy, static_speed = asyncio.run(measure(target, batch=target.slots))
    setting = (
        f"real time, {target.name} behind a Headway worker, {target.slots} slots, {target.jobs} queued jobs,"
        f" answers log-normal around {target.median_tokens} tokens"
    )
    return [
        Figure(f"batching.{prefix}busy_slots_continuous", busy, "of slots", static_busy, setting),
        Figure(
            f"batching.{prefix}busy_slots_static",
            static_busy,
            "of slots",
            None,
            f"{setting}, batch-at-a-time",
        ),
        Figure(
            f"batching.{prefix}tokens_per_s_ratio",
            speed / static_speed,
            "times batch-at-a-time",
            1.0,
            f"{setting}; {speed:,.0f} against {static_speed:,.0f} tokens/s, until the last end",
        ),
    ]


def live(*, quick: bool) -> list[Figure]:
    gpu = "llama-3.1-8b-bf16@1xh100"
    slots, jobs = (16, 48) if quick else (32, 640)
    model = Target(f"simulated {gpu}", slots, jobs, 300, 144, 300 if quick else 1000, simulated=gpu)
    real = Target("llama.cpp (SmolLM2-135M, CPU)", 8, 16 if quick else 160, 30, 24, 48 if quick else 128)
    return [*compare(model, ""), *compare(real, "llamacpp_")]
