"""A synthetic tenant: requests of recurring templates whose outputs have habits, as workers would report them."""

import random
from collections.abc import Iterator
from typing import Any

from broker.learning import Outcome
from predictor.features import VERSION, extract
from predictor.habits import past_key
from predictor.history import template_key

TASKS = (
    "Summarise the ticket",
    "Classify the mail",
    "Draft a reply",
    "Extract the fields",
    "Explain the error",
)


def document(task: int, chance: random.Random) -> dict[str, Any]:
    """Two requests of one task differ in their text, not in their template."""
    words = " ".join(chance.choice(("red", "green", "blue", "slow", "late")) for _ in range(40))
    system = f"You work for desk {'abcdefghij'[task]}. {TASKS[task % len(TASKS)]} you are given."
    return {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Here is the next one for you: {words}"},
        ]
    }


def outcomes(n: int, *, habits: tuple[float, ...], seed: int = 0, spread: float = 0.15) -> Iterator[Outcome]:
    """`habits`: median output tokens of each task."""
    chance = random.Random(seed)
    for _ in range(n):
        task = chance.randrange(len(habits))
        asked = document(task, chance)
        features = extract(asked)
        tokens = max(1, round(habits[task] * chance.lognormvariate(0, spread)))
        yield Outcome(
            past_key=past_key("acme", template_key(asked)),
            features=features.values,
            features_version=VERSION,
            prompt_type=str(features.prompt_type),
            prompt_tokens=features.prompt_tokens,
            cached_tokens=0,
            output_tokens=tokens,
            run_s=0.1 + 0.01 * tokens,
            forecast_s=1.0,
            ended="stop",
        )
