"""Time to the first token of P0 jobs while batch jobs with long prompts fill the engine. Virtual time; used by `engines.py`."""

import random
from dataclasses import dataclass

from engine_batching import GPU, engine
from engine_fleet import SEED, Shape, Work, engine_fleet
from figures import Figure

from broker.job import ServiceClass
from broker.settings import Settings
from workers.capacity import Plan
from workers.engines.sim.sequence import Answer, Request, prompt_of

SLOTS, KV_TOKENS, MODEL_LEN = 32, 131_072, 16_384
PER_S, WARM_S = 2.0, 20.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Log-normal lengths: (mu, sigma, at most) of prompts and answers, in log tokens and tokens."""

    prompt: tuple[float, float, int]
    answer: tuple[float, float, int]


CHAT = Kind((6.0, 0.7, 2000), (4.97, 0.89, 1000))
DOCUMENTS = Kind((8.7, 0.5, 15_000), (5.3, 0.6, 1000))  # about 6,000 tokens


def work(name: str, at_s: float, kind: Kind, *, rng: random.Random, urgent: bool) -> Work:
    sizes = []
    for mu, sigma, most in (kind.prompt, kind.answer):
        sizes.append(min(most, max(16, round(rng.lognormvariate(mu, sigma)))))
    prompt, output = sizes
    told = round(output * 2 ** rng.uniform(-1, 1))
    request = Request(name, prompt_of([rng.getrandbits(40)] * prompt), (Answer(output, seed=prompt),))
    service_class = ServiceClass.P0 if urgent else ServiceClass.P2
    run_s = prompt / 20_000 + told / 60
    return Work(at_s, request, run_s, min(MODEL_LEN, prompt + told), service_class=service_class)


def ttft_p99_s(plan: Plan, *, seconds: float, documents: int) -> float:
    rng, at_s, works = random.Random(SEED), 0.0, list[Work]()
    while (at_s := at_s + rng.expovariate(PER_S)) < seconds:
        works.append(work(f"chat{len(works)}", at_s, CHAT, rng=rng, urgent=True))
    works += [work(f"doc{n}", 0.0, DOCUMENTS, rng=rng, urgent=False) for n in range(documents)]
    shape = Shape(1, plan, lambda: engine(kv_tokens=KV_TOKENS, max_model_len=MODEL_LEN))
    with engine_fleet(shape) as fleet:
        fleet.play(works, until_s=seconds)
        waits = [
            fleet.first_s.get(each.request.request_id, seconds) - each.at_s
            for each in works
            if each.service_class is ServiceClass.P0 and WARM_S < each.at_s < seconds - WARM_S
        ]
    return sorted(waits)[int(0.99 * len(waits))]


def interactive(*, quick: bool) -> list[Figure]:
    """Alone, beside batch work with Headway's default budget and reserve, and with neither."""
    seconds, documents = (90.0, 150) if quick else (600.0, 1000)
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    budget = defaults["prefill_tokens"]
    guarded = Plan(SLOTS, kv_tokens=KV_TOKENS, prefill_tokens=budget)
    bare = Plan(SLOTS, reserve=0.0, kv_tokens=KV_TOKENS)
    alone = ttft_p99_s(guarded, seconds=seconds, documents=0)
    with_s, without_s = (ttft_p99_s(p, seconds=seconds, documents=documents) for p in (guarded, bare))
    setting = (
        f"virtual time, {GPU}, {SLOTS} slots, {KV_TOKENS:,} tokens of KV; {PER_S:g} chats a second and {documents} queued"
        f" documents of some 6,000 tokens; prefill budget {budget:,}, adaptive reserve; TTFT p99 alone {1000 * alone:.0f} ms,"
        f" beside them {1000 * with_s:.0f} ms, with neither budget nor reserve {1000 * without_s:.0f} ms"
    )
    return [Figure("interactive.ttft_p99_ratio", with_s / alone, "times alone", without_s / alone, setting)]
