"""Prompt tokens that llama.cpp need not read again, with two workers and two system prompts. Real time; used by `engines.py`."""

import asyncio
import json
from dataclasses import replace

from engine_live import POOL, Target, ended, worker
from figures import Figure
from own_redis import own_redis

from broker.connection import Pipe
from broker.job import Forecast, ServiceClass, Status, Submission, new_job_id
from broker.producer import Producer
from predictor.prefix import prefix_chain

ENGINE = Target("llama.cpp (SmolLM2-135M, CPU)", 4, 0, 0, 0, 0)
SYSTEM_WORDS = 600  # some 1,750 tokens
SYSTEMS = 2
QUESTIONS = 12


def chat(n: int, *, located: bool) -> Submission:
    """The `n`th question, under one of the system prompts by turns. `located`: the queue is told its prefix."""
    system = f"You are number {n % SYSTEMS}. " + " ".join(f"rule{word % 97}" for word in range(SYSTEM_WORDS))
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {n}?"}]
    body = {"messages": messages, "max_tokens": 4}
    job = Submission(
        new_job_id(POOL),
        ServiceClass.P1,
        "/v1/chat/completions",
        json.dumps(body).encode(),
        Forecast(2000, 4, 1.0),
        deadline_s=3600.0,
    )
    return replace(job, prefix=prefix_chain(body)) if located else job


async def saved_share(questions: int, *, located: bool) -> tuple[float, int]:
    """Of all prompt tokens those that were cached; and the tokens of one prompt. Two questions at a time."""
    views = []
    with own_redis() as url, worker(ENGINE, url), worker(ENGINE, url):
        pipe = Pipe(url)
        producer = Producer(pipe)
        for at in range(0, questions, 2):
            pair = [chat(n, located=located) for n in (at, at + 1)]
            await producer.submit_bulk(pair)
            views += await ended(producer, pair)
        await pipe.close()
    if lost := [view.job_id for view in views if view.status is not Status.SUCCEEDED]:
        raise RuntimeError(f"{len(lost)} of {len(views)} jobs did not succeed: {lost[:3]}")
    asked = sum(view.usage["prompt_tokens"] for view in views)
    return sum(view.usage["cached_tokens"] for view in views) / asked, asked // len(views)


def llamacpp_prefix() -> list[Figure]:
    saved, tokens = asyncio.run(saved_share(QUESTIONS, located=True))
    without, _ = asyncio.run(saved_share(QUESTIONS, located=False))
    setting = (
        f"real time, 2 workers with {ENGINE.name}, {QUESTIONS} questions under {SYSTEMS} system prompts, {tokens:,} tokens each;"
        f" at best {1 - SYSTEMS / QUESTIONS:.3f}; baseline: the queue does not know prefixes"
    )
    return [Figure("prefix.llamacpp_saved_share", saved, "of prompt tokens", without, setting)]
