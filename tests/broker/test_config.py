"""`headway.yaml`: the default pair of pools, and messages that name the file and the entry at fault."""

from pathlib import Path

import pytest

from broker.config import load_config
from broker.errors import ConfigError
from broker.settings import Settings

PAIR = "models: [{pool: a}, {pool: b}]\n"


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
        ("models: " + "[" * 3000 + "]" * 3000, "is not YAML that can be read"),
        ("models: [{pool: a, pool: b}]", "is not YAML: 'pool' is given twice in one mapping"),
        (f"{PAIR}{PAIR}", "is not YAML: 'models' is given twice in one mapping"),
        ("models: []", "models: must not be empty"),
        ("models: [{pool: a/b}]", "models.0.pool: is no pool name"),
        ("models: [{pool: a, engine: 'gpu1:8000'}]", "models.0.engine: is neither"),
        *(
            (f"models: [{{pool: a, engine: '{address}'}}]", "models.0.engine: names no host, or no port")
            for address in (
                "http://",
                "http://:80",
                "http://h:99999",
                "http://h:0",
                "http://h:x",
                "http://[::1",
                "https:///v1",
            )
        ),
        ("models: [{pool: a, slots: 0}]", "models.0.slots: "),
        ("models: [{pool: a, slots: true}]", "models.0.slots: must be a whole number"),
        ("models: [{pool: a, shards: true}]", "models.0.shards: must be a whole number"),
        ("models: [{pool: a, kv_tokens: yes}]", "models.0.kv_tokens: must be a whole number"),
        ("models: [{pool: a, speed: true}]", "models.0.speed: must be a number"),
        ("classes: {P0: {max_queued: true}}", "classes.P0.max_queued: must be a whole number"),
        ("tenants: [{name: a, limits: {concurrent: true}}]", "limits.concurrent: must be a whole number"),
        ("models: [{pool: a, color: red}]", "models.0.color: is not a known name here"),
        ("models: [{pool: a, dialect: trt}]", "models.0.dialect: "),
        ("models: [{pool: a}, {pool: b, aliases: [a]}]", "the name 'a' is used twice"),
        (f"{PAIR}routes: [{{name: a, small: a, large: b}}]", "the name 'a' is used twice"),
        (f"{PAIR}routes: [{{name: r, small: a, large: c}}]", "there is no pool 'c' among the models"),
        (f"{PAIR}routes: [{{name: r, small: a, large: a}}]", "small and large are the same pool"),
        (
            f"{PAIR}routes: [{{name: r, small: a, large: b, target: {{share_large: 2}}}}]",
            "routes.0.target.share_large: ",
        ),
        (
            f"{PAIR}routes: [{{name: r, small: a, large: b, target: {{share_large: 0.1, quality: 0.9}}}}]",
            "give share_large or quality, not both",
        ),
        ("- a", "must be a mapping of names to values"),
    ],
)
def test_a_wrong_file_refuses_to_start_and_names_the_entry(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "h.yaml"
    error = read(path, text)
    assert error.startswith(str(path))
    assert message in error


def test_names_that_a_merge_brings_may_be_given_again(tmp_path: Path) -> None:
    path = tmp_path / "h.yaml"
    path.write_text(
        "models:\n- &a {pool: a, slots: 2}\n- &b {<<: *a, pool: b}\n- {<<: *b, pool: c, slots: 3}\n", "utf-8"
    )
    models = load_config(Settings(config=path)).models
    assert [(model.pool, model.slots) for model in models] == [("a", 2), ("b", 2), ("c", 3)]


def test_a_named_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load_config(Settings(config=tmp_path / "none.yaml"))


def test_one_wrong_entry_is_one_message(tmp_path: Path) -> None:
    error = read(tmp_path / "h.yaml", "models: [{pool: a, slots: many}]")
    assert error.endswith("models.0.slots: must be a whole number")
    assert ";" not in error


def test_without_a_file_there_is_a_route_and_with_models_of_ones_own_only_those_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    route = load_config(Settings()).route("auto")
    assert route is not None
    assert (route.small, route.large, route.escalate, route.cascade) == ("small", "large", True, None)
    path = tmp_path / "h.yaml"
    path.write_text(PAIR, "utf-8")
    assert load_config(Settings(config=path)).routes == ()


@pytest.mark.parametrize(("text", "window"), [("true", 16), ("false", None), ("{window: 4}", 4)])
def test_a_cascade_can_be_switched_on_or_described(tmp_path: Path, text: str, window: int | None) -> None:
    path = tmp_path / "h.yaml"
    path.write_text(f"{PAIR}routes: [{{name: r, small: a, large: b, cascade: {text}}}]", "utf-8")
    route = load_config(Settings(config=path)).route("r")
    assert route is not None
    assert (route.cascade.window if route.cascade else None) == window
