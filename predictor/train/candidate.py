"""Trains a folder of models on finished requests. Whether they are better than those in use is for others to judge."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import lightgbm as lgb
import numpy as np

from broker.errors import ConfigError
from predictor.model_card import Card, Source, read_card
from predictor.train import scores
from predictor.train.fit import MIN_ROWS, Fitted, Split, fit_lengths, fit_tool, judged, split, split_by_time
from predictor.train.rows import Rows
from predictor.train.save import save

LENGTH_MODELS = ("p50", "p90", "mean")


def train(rows: Rows, folder: Path, *, base: Path | None = None, ordered: bool = True) -> Card:
    """Writes a candidate into `folder`. `ordered`: rows are in the order of time, and the newest are the test.

    What the rows do not teach (tool calls, where hardly any were offered; a router's model) is taken over from `base`.
    Raises ConfigError if there are too few rows, OSError.
    """
    known = rows.take(np.isfinite(rows.output))
    parts = _parts(known, ordered=ordered)
    try:
        fitted = fit_lengths(known, parts)
    except ValueError as error:
        raise ConfigError(f"too little to learn from: {error}") from error
    found = judged(fitted, known.take(parts.test))
    models, tool_scores = dict(fitted.models), dict[str, float]()
    if (told := _told(rows)) is not None:
        models["tool"], tool_scores = _tool(told, ordered=ordered)
    card = Card(
        version=f"{datetime.now(UTC):%Y%m%d-%H%M%S}",
        files={name: f"{name}.txt" for name in models},
        calibration=fitted.calibration,
        trained_on=(Source("own traffic", "own", len(rows)),),
        scores=found | tool_scores,
    )
    return _complete(folder, card, models=models, base=base)


def load_fitted(folder: Path) -> tuple[Card, Fitted]:
    """Raises ConfigError if the folder holds no models of this version."""
    card = read_card(folder)
    missing = [name for name in LENGTH_MODELS if name not in card.files]
    if missing:
        raise ConfigError(f"{folder}: no model named {', '.join(missing)}")
    try:
        models = {name: lgb.Booster(model_file=str(folder / file)) for name, file in card.files.items()}
    except lgb.basic.LightGBMError as error:
        raise ConfigError(f"{folder}: {error}") from error
    return card, Fitted(models, card.calibration)


def _parts(rows: Rows, *, ordered: bool) -> Split:
    return split_by_time(len(rows)) if ordered else split(rows.groups)


def _told(rows: Rows) -> Rows | None:
    """Rows that say whether a tool was called, where both happened often enough."""
    told = rows.take(np.isfinite(rows.tool))
    fewest = min(int((told.tool > 0.5).sum()), int((told.tool < 0.5).sum()))
    return told if len(told) >= 2 * MIN_ROWS and fewest >= MIN_ROWS // 4 else None


def _tool(told: Rows, *, ordered: bool) -> tuple["lgb.Booster", dict[str, float]]:
    parts = _parts(told, ordered=ordered)
    model, test = fit_tool(told, parts), told.take(parts.test)
    if len(np.unique(test.tool)) < 2:
        return model, {}
    said = np.asarray(model.predict(test.x, num_threads=1))
    return model, {"tool_auroc": scores.auroc(test.tool, said)}


def _complete(folder: Path, card: Card, *, models: dict[str, "lgb.Booster"], base: Path | None) -> Card:
    """Saves the card with what is carried over from `base`."""
    files = {} if base is None else read_card(base).files
    carried = {name: file for name, file in files.items() if name not in card.files}
    folder.mkdir(parents=True, exist_ok=True)
    for file in carried.values():
        assert base is not None
        shutil.copyfile(base / file, folder / file)
    card = replace(card, files=card.files | carried)
    save(folder, card, models=models)
    return card
