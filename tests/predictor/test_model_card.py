"""A folder of models is refused unless it fits this version's features and is whole."""

from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from broker.errors import ConfigError
from predictor.length import Calibration
from predictor.lexicon import shipped
from predictor.model_card import CARD, Card, Source, read_card, write_card

WHOLE = Card(
    "v1", {"p50": "p50.txt"}, calibration=Calibration(0.1, 0.2, 1.1), trained_on=(Source("a", "MIT", 3),)
)
MAY_SHIP = {"Apache-2.0", "MIT", "CC-BY-4.0", "own"}


def test_card_survives_the_file(tmp_path: Path) -> None:
    (tmp_path / "p50.txt").write_bytes(b"tree")
    write_card(tmp_path, WHOLE)
    assert replace(read_card(tmp_path), sha256={}) == WHOLE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "files": 3}', "\xff"])
def test_malformed_card_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD).write_text(text, "latin-1")
    with pytest.raises(ConfigError, match=CARD):
        read_card(tmp_path)


def test_missing_folder_missing_model_and_other_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_card(tmp_path / "none")
    model = tmp_path / "p50.txt"
    model.write_bytes(b"tree")
    write_card(tmp_path, WHOLE)
    model.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"p50\.txt missing"):
        read_card(tmp_path)
    model.write_bytes(b"tree")
    write_card(tmp_path, replace(WHOLE, features=("other",)))
    with pytest.raises(ConfigError, match="other features"):
        read_card(tmp_path)


def test_shipped_models_are_whole_and_trained_on_what_may_ship() -> None:
    with as_file(files("predictor").joinpath("models")) as folder:
        card = read_card(folder)
    assert {"p50", "p90", "mean", "tool"} <= set(card.files)
    assert {source.licence for source in card.trained_on} <= MAY_SHIP
    assert 0.88 <= card.scores["p90_cover"] <= 0.92
    assert shipped().length
    assert shipped().tool
