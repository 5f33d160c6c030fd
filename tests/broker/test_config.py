"""`headway.yaml`: the default pair of pools, and messages that name the file and the entry at fault."""

from pathlib import Path

import pytest

from broker.config import load_config
from broker.errors import ConfigError
from broker.settings import Settings


def read(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(Settings(config=path))
    return str(caught.value)


def test_without_a_file_there_are_two_embedded_pools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(Settings())
    assert [(model.pool, model.embedded) for model in config.models] == [("small", True), ("large", True)]


def test_the_file_in_the_working_directory_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("headway.yaml").write_text(
        "models:\n- {pool: coder, engine: 'http://gpu1:8000/', dialect: vllm, aliases: [Qwen/Qwen3-8B]}\n",
        "utf-8",
    )
    model = load_config(Settings()).find("Qwen/Qwen3-8B")
    assert model is not None
    assert (model.pool, model.engine, model.dialect, model.embedded) == (
        "coder",
        "http://gpu1:8000",
        "vllm",
        False,
    )
    assert load_config(Settings()).find("small") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [", "is not YAML"),
        ("models: []", "models: "),
        ("models: [{pool: a/b}]", "models.0.pool: is no pool name"),
        ("models: [{pool: a, engine: 'gpu1:8000'}]", "models.0.engine: is neither"),
        ("models: [{pool: a, slots: 0}]", "models.0.slots: "),
        ("models: [{pool: a, color: red}]", "models.0.color: is not a known name here"),
        ("models: [{pool: a, dialect: trt}]", "models.0.dialect: "),
        ("models: [{pool: a}, {pool: b, aliases: [a]}]", "the name 'a' is used twice"),
        ("- a", "must be a mapping of names to values"),
    ],
)
def test_a_wrong_file_refuses_to_start_and_names_the_entry(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "h.yaml"
    error = read(path, text)
    assert error.startswith(str(path))
    assert message in error


def test_a_named_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load_config(Settings(config=tmp_path / "none.yaml"))


def test_one_wrong_entry_is_one_message(tmp_path: Path) -> None:
    error = read(tmp_path / "h.yaml", "models: [{pool: a, slots: many}]")
    assert error.endswith("models.0.slots: must be a whole number")
    assert ";" not in error
