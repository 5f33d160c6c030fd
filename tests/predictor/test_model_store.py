"""Which models serve: promotions, the way back, and what is thrown away."""

from pathlib import Path

import pytest

from broker.errors import ConfigError
from predictor.features import FEATURES
from predictor.model_card import Card, write_card
from predictor.model_set import SHIPPED
from predictor.model_store import KEEP, ModelStore


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


def added(store: ModelStore, tmp_path: Path, version: str) -> str:
    folder = tmp_path / f"candidate-{version}"
    folder.mkdir()
    (folder / "p50.txt").write_text("tree\n")
    write_card(folder, Card(version=version, files={"p50": "p50.txt"}, features=FEATURES))
    return store.add(folder)


def test_at_first_the_shipped_models_serve(store: ModelStore) -> None:
    assert store.serving() == "shipped"
    assert store.folder("shipped") == SHIPPED
    assert store.names() == ["shipped"]
    with pytest.raises(ConfigError, match="nothing served before"):
        store.rollback()


def test_a_rollback_undoes_a_promotion_and_the_version_stays(store: ModelStore, tmp_path: Path) -> None:
    for version in ("a1", "a2"):
        store.promote(added(store, tmp_path, version))
    assert store.serving() == "a2"
    assert store.rollback() == "a1"
    assert store.rollback() == "shipped"
    assert store.serving() == "shipped"
    assert store.names() == ["a2", "a1", "shipped"]
    store.promote("a2")
    assert store.serving() == "a2"


def test_every_change_of_what_serves_changes_the_mark(store: ModelStore, tmp_path: Path) -> None:
    marks = [store.mark()]
    store.promote(added(store, tmp_path, "a1"))
    marks.append(store.mark())
    store.rollback()
    marks.append(store.mark())
    assert len(set(marks)) == 3
    assert store.mark() == marks[-1]


def test_old_versions_are_dropped_but_not_those_that_served_last(store: ModelStore, tmp_path: Path) -> None:
    for number in range(KEEP + 4):
        store.promote(added(store, tmp_path, f"v{number}"))
    assert store.serving() == f"v{KEEP + 3}"
    assert store.before()[0] == f"v{KEEP + 2}"
    assert len(store.names()) <= KEEP + 2
    assert all(store.folder(version).is_dir() for version in store.before())


@pytest.mark.parametrize("version", ["../up", "", "A", "shipped"])
def test_a_version_that_is_no_name_is_refused(store: ModelStore, tmp_path: Path, version: str) -> None:
    folder = tmp_path / "candidate"
    folder.mkdir()
    write_card(folder, Card(version=version, files={}))
    with pytest.raises(ConfigError):
        store.add(folder)
    assert store.names() == ["shipped"]


def test_a_version_is_added_once(store: ModelStore, tmp_path: Path) -> None:
    added(store, tmp_path, "a1")
    with pytest.raises(ConfigError, match="already"):
        store.add(tmp_path / "candidate-a1")


def test_a_broken_pointer_means_the_shipped_models(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    (store.home / "predictor").mkdir(parents=True)
    (store.home / "predictor" / "current.json").write_bytes(b"{")
    assert store.serving() == "shipped"
    assert "shipped models serve" in caplog.text
