"""Models that are made in a second, over the real features, for tests of everything around them."""

from pathlib import Path

import lightgbm as lgb
import numpy as np

from predictor.features import FEATURES, INDEX
from predictor.length import USUAL_LOG
from predictor.model_card import Card, write_card

LENGTHS = ("p50", "p90", "mean")


def booster(output: float, *, seed: int = 0) -> "lgb.Booster":
    """Says about `output` for any request, a little more for a longer prompt."""
    random = np.random.default_rng(seed)
    x = random.random((400, len(FEATURES)))
    y = output + 0.01 * output * x[:, INDEX["prompt_tokens"]]
    options = {"objective": "regression", "verbosity": -1, "num_threads": 1, "seed": seed, "num_leaves": 4}
    return lgb.train(options, lgb.Dataset(x, y, feature_name=list(FEATURES)), 20)


def folder_of(path: Path, *, tokens: float, version: str) -> Path:
    """A model folder whose forecasts are about `tokens`, for a pool of which nothing is known."""
    path.mkdir(parents=True)
    usual = float(np.expm1(USUAL_LOG))  # what models count from where nothing is known of a pool
    for name in LENGTHS:
        told = (
            tokens / usual if name == "mean" else float(np.log(tokens * (2 if name == "p90" else 1) / usual))
        )
        (path / f"{name}.txt").write_text(booster(told).model_to_string(), "utf-8")
    write_card(path, Card(version=version, files={name: f"{name}.txt" for name in LENGTHS}))
    return path
