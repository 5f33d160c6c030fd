"""A candidate serves only if it is better on requests that it has not seen; a bad one changes nothing."""

from pathlib import Path

import pytest

from broker.errors import ConfigError
from predictor.model_store import ModelStore
from predictor.own_traffic import Seen, write_rows
from predictor.retrain import run
from tests.predictor.small_models import folder_of
from tests.predictor.tenants import outcomes

HABITS = (30.0, 90.0, 250.0, 700.0)


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traffic") / "rows.jsonl"
    write_rows(path, [Seen("small", (at, 0), each) for at, each in enumerate(outcomes(1200, habits=HABITS))])
    return path


def test_what_was_learned_from_own_traffic_beats_the_shipped_models_once(
    traffic: Path, tmp_path: Path
) -> None:
    store = ModelStore(tmp_path)
    verdict = run(traffic, tmp_path)
    assert verdict.promoted, verdict
    assert verdict.loss < 0.9 * verdict.serving_loss
    assert verdict.requests == 240
    assert verdict.serving == "shipped"
    assert store.serving() == verdict.version
    assert store.card(verdict.version).files["tool"] == "tool.txt"  # taken over: nothing here told of tools

    again = run(traffic, tmp_path)  # the same once more is no better
    assert not again.promoted
    assert "not better" in again.reason
    assert store.serving() == verdict.version


def test_a_bad_candidate_is_refused_and_what_serves_stays(traffic: Path, tmp_path: Path) -> None:
    """Compared with models that know these habits; the candidate answers 5,000 tokens to everything."""
    from predictor.train.promote import compare
    from predictor.train.rows import read_rows

    assert run(traffic, tmp_path).promoted
    store = ModelStore(tmp_path)
    bad = folder_of(tmp_path / "bad", tokens=5000.0, version="bad")
    verdict = compare(bad, store.folder(store.serving()), rows=read_rows([traffic]))
    assert not verdict.promoted
    assert "P90 covers 1.000" in verdict.reason
    assert verdict.loss > 10 * verdict.serving_loss


def test_a_trial_promotes_nothing(traffic: Path, tmp_path: Path) -> None:
    verdict = run(traffic, tmp_path, dry_run=True)
    assert not verdict.promoted
    assert "tried out" in verdict.reason
    assert ModelStore(tmp_path).names() == ["shipped"]


def test_models_that_are_damaged_give_way_to_any_that_beat_a_constant(traffic: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.promote(store.add(folder_of(tmp_path / "candidate", tokens=100.0, version="a0")))
    (store.folder("a0") / "p50.txt").write_bytes(b"tree\n")
    verdict = run(traffic, tmp_path)
    assert verdict.promoted, verdict
    assert store.serving() == verdict.version


def test_too_little_to_learn_from_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [Seen("small", (at, 0), each) for at, each in enumerate(outcomes(50, habits=HABITS))])
    with pytest.raises(ConfigError, match="50 requests to learn from"):
        run(path, tmp_path)


def test_a_file_that_holds_no_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("no json\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1"):
        run(tmp_path / "rows.jsonl", tmp_path)
