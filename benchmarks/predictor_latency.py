"""What a forecast costs a request: features and all models, one row at a time, as an API process does it."""

import gc
import time

import numpy as np
from figures import Figure

from predictor.features import READER
from predictor.history import History, Past
from predictor.model_set import LENGTHS, SHIPPED, ModelSet, open_models

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
WORDS = "The engine reads the prompt once, then writes one token after the other; 128 of them are a page.\n"
PAST = Past(History(40, 5.1, 160.0, 320.0), History(900, 5.3))


def prompt(tokens: int) -> dict[str, object]:
    """A chat of about so many tokens; 4.6 characters make one here."""
    text = "Summarise the notes below in 200 words, as a list of bullet points.\n" + WORDS * (
        tokens * 46 // 10 // len(WORDS)
    )
    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are a careful assistant."},
            {"role": "user", "content": text},
        ],
        "temperature": 0.2,
    }


def latency(*, quick: bool) -> list[Figure]:
    """Both sizes apart; the slower of the two is the figure. Beside it the thread's own CPU time, which other processes on
    a busy machine do not lengthen."""
    models = open_models(SHIPPED)
    rounds = 5_000 if quick else 50_000
    found = {size: measured(prompt(size), models, rounds=rounds) for size in (1_000, 8_000)}
    figures = []
    for share, aim in ((0.5, 100), (0.99, 500)):
        wall, own = (max(np.quantile(times[kind], share) for times in found.values()) for kind in (0, 1))
        each = ", ".join(f"{size} tokens {np.quantile(times[0], share):.1f}" for size, times in found.items())
        setting = (
            f"features and {len(models.boosters)} models, {rounds} requests of each size: {each}; "
            f"of the thread's own CPU time {own:.1f}; aim {aim}"
        )
        figures.append(Figure(f"predict.us_p{share * 100:.0f}", round(float(wall), 1), "µs", None, setting))
    return figures


def measured(document: dict[str, object], models: ModelSet, *, rounds: int) -> Array:
    """Microseconds, (2, rounds): wall clock and CPU."""
    times = np.empty((2, rounds))
    others = [booster for name, booster in models.boosters.items() if name not in LENGTHS]
    gc.collect()
    for at in range(-100, rounds):
        own, start = time.thread_time_ns(), time.perf_counter_ns()
        features = READER.read(document, PAST)
        row = features.vector()
        models.lengths(row, features)
        for booster in others:
            booster.predict(row)
        if at >= 0:
            times[:, at] = (time.perf_counter_ns() - start) / 1e3, (time.thread_time_ns() - own) / 1e3
    return times
