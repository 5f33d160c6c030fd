"""A folder of models is opened whole or not at all."""

from array import array
from pathlib import Path

import orjson
import pytest

from broker.errors import ConfigError
from predictor.booster import ModelUnfit
from predictor.features import FEATURES, extract
from predictor.model_set import SHIPPED, open_models, probe, try_out
from tests.predictor.small_models import folder_of

CHAT = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}


def test_lengths_come_from_the_models(tmp_path: Path) -> None:
    models = open_models(folder_of(tmp_path / "m", tokens=100.0, version="one"))
    features = extract(CHAT)
    found = models.lengths(features.vector(), features)
    assert found.p50 == pytest.approx(100, rel=0.15)
    assert found.p90 == pytest.approx(200, rel=0.15)
    assert models.version == "one"


def test_the_shipped_models_answer_any_row() -> None:
    models = open_models(SHIPPED)
    try_out(models)
    assert {"p50", "p90", "mean", "tool"} <= set(models.boosters)
    assert all(len(models.card.sha256[file]) == 64 for file in models.card.files.values())
    row = array("d", [0.0]) * len(FEATURES)
    assert models.lengths(row, extract(CHAT)).p50 >= 1


def test_a_changed_byte_is_found_by_the_checksum(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", tokens=100.0, version="one")
    content = bytearray((folder / "p50.txt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "p50.txt").write_bytes(content)
    with pytest.raises(ModelUnfit, match="SHA-256"):
        open_models(folder)


def test_a_card_without_checksums_vouches_for_nothing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", tokens=100.0, version="one")
    card = orjson.loads((folder / "card.json").read_bytes())
    (folder / "card.json").write_bytes(orjson.dumps(card | {"sha256": {}}))
    with pytest.raises(ModelUnfit, match="SHA-256"):
        open_models(folder)


def test_models_over_other_features_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", tokens=100.0, version="one")
    card = orjson.loads((folder / "card.json").read_bytes())
    (folder / "card.json").write_bytes(orjson.dumps(card | {"features": card["features"][1:]}))
    with pytest.raises(ConfigError, match="train again"):
        open_models(folder)


def test_a_probe_survives_what_it_probes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", tokens=100.0, version="one")
    probe(folder)
    (folder / "p90.txt").write_bytes(b"tree\n")
    with pytest.raises(ModelUnfit, match="SHA-256"):
        probe(folder)
