"""Writes a folder of models. A reader never sees half of one: the card comes last, and a folder without it is none."""

from collections.abc import Mapping
from pathlib import Path

import lightgbm as lgb

from predictor.model_card import CARD, Card, write_card


def save(folder: Path, card: Card, *, models: Mapping[str, "lgb.Booster"]) -> None:
    """`models` by the names in `card.files`; what is only in the card lies in the folder already. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).unlink(missing_ok=True)
    for name, model in models.items():
        text = model.model_to_string(num_iteration=model.best_iteration or None)
        (folder / card.files[name]).write_text(_lean(text), "utf-8")
    write_card(folder, card)


def _lean(text: str) -> str:
    """Without importances (they are in the trees) and the parameters of training."""
    head, _, _ = text.partition("\nfeature_importances:")
    return f"{head}\n"
