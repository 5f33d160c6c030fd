"""`HEADWAY_*` variables: defaults, bounds, and messages that name the variable at fault."""

from pathlib import Path

import orjson
import pytest

from broker.client_settings import ClientSettings
from broker.errors import ConfigError
from broker.settings import Settings, child_environment, load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in child_environment(Settings()) if name.startswith("HEADWAY_")]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_without_variables_everything_is_on_loopback_and_in_the_working_directory(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.home == tmp_path / ".headway"
    assert (settings.host, settings.port, settings.loopback) == ("127.0.0.1", 8000, True)
    assert settings.redis_is_own
    assert settings.files_url == f"file://{tmp_path}/.headway/files"


def test_stream_and_celery_follow_the_redis_url_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_REDIS_URL", "redis://queue:6379/1")
    monkeypatch.setenv("HEADWAY_CELERY_URL", "amqp://broker//")
    settings = load_settings()
    assert settings.stream_url == "redis://queue:6379/1"
    assert settings.celery_url == "amqp://broker//"
    assert not settings.redis_is_own


def test_own_redis_is_found_through_up_json_of_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part = {"name": "redis", "kind": "redis", "pid": 1, "url": "redis://127.0.0.1:4711/0"}
    (tmp_path / "up.json").write_bytes(orjson.dumps({"parts": [part]}))
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    settings = load_settings()
    assert settings.redis_url == "redis://127.0.0.1:4711/0"
    assert settings.redis_is_own


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADWAY_PORT", "65536"),
        ("HEADWAY_PORT", "-1"),
        ("HEADWAY_PORT", "http"),
        ("HEADWAY_LEASE_S", "0"),
        ("HEADWAY_LEASE_S", "nan"),
        ("HEADWAY_REDIS_URL", "localhost:6379"),
        ("HEADWAY_FILES_URL", "/data"),
        ("HEADWAY_APPENDFSYNC", "no"),
        ("HEADWAY_LOG_LEVEL", "verbose"),
    ],
)
def test_a_wrong_value_refuses_to_start_and_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        load_settings()


def test_all_wrong_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_PORT", "x")
    monkeypatch.setenv("HEADWAY_SLOTS", "0")
    with pytest.raises(ConfigError, match=r"HEADWAY_PORT: .*; HEADWAY_SLOTS: ") as caught:
        load_settings()
    assert "\n" not in str(caught.value)


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_PROT", "8001")
    with pytest.raises(ConfigError, match=r"HEADWAY_PROT is not a setting; did you mean HEADWAY_PORT\?"):
        load_settings()


def test_variables_of_a_kubernetes_service_called_headway_are_no_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWAY_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HEADWAY_PORT_8000_TCP", "tcp://10.0.0.1:8000")
    load_settings()


def test_secrets_are_neither_shown_nor_repeated_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_API_KEYS", " hunter2 , hunter3,")
    settings = load_settings()
    assert [key.get_secret_value() for key in settings.api_keys] == ["hunter2", "hunter3"]
    assert "hunter" not in repr(settings)
    monkeypatch.setenv("HEADWAY_REDIS_URL", "http://user:hunter2@queue")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert "hunter" not in str(caught.value)


def test_children_get_what_was_decided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    decided = load_settings(redis_url="redis://127.0.0.1:4711/0", port=4712, home=tmp_path / "h")
    for name, value in child_environment(decided).items():
        monkeypatch.setenv(name, value)
    child = load_settings()
    assert (child.redis_url, child.stream_url, child.port) == (decided.redis_url, decided.stream_url, 4712)
    assert child.home == tmp_path / "h"
    assert not child.redis_is_own


def test_client_commands_read_the_url_else_up_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="headway up"):
        ClientSettings().find_url()
    (tmp_path / ".headway").mkdir()
    (tmp_path / ".headway" / "up.json").write_bytes(
        orjson.dumps({"api": {"url": "http://127.0.0.1:4711", "pid": 1}})
    )
    assert ClientSettings().find_url() == "http://127.0.0.1:4711"
    monkeypatch.setenv("HEADWAY_URL", "https://headway.example/")
    assert ClientSettings().find_url() == "https://headway.example"


def test_streams_on_another_redis_are_refused_rather_than_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("HEADWAY_STREAM_URL", "redis://127.0.0.1:2/0")
    with pytest.raises(ConfigError, match="HEADWAY_STREAM_URL"):
        load_settings()


def test_a_variable_that_is_like_no_setting_is_refused_in_one_short_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWAY_XYZZY", "1")
    with pytest.raises(ConfigError, match=r"^HEADWAY_XYZZY is not a setting; all are in docs/settings\.md$"):
        load_settings()


@pytest.mark.parametrize(("said", "meant"), [("", None), ("adaptive", None), ("0", 0.0), ("0.3", 0.3)])
def test_the_reserve_is_adaptive_or_a_share(
    monkeypatch: pytest.MonkeyPatch, said: str, meant: float | None
) -> None:
    monkeypatch.setenv("HEADWAY_BULK_RESERVE", said)
    assert load_settings().bulk_reserve == meant
    monkeypatch.setenv("HEADWAY_BULK_RESERVE", child_environment(load_settings())["HEADWAY_BULK_RESERVE"])
    assert load_settings().bulk_reserve == meant


@pytest.mark.parametrize("said", ["lots", "1", "-0.1"])
def test_a_reserve_that_is_neither_names_its_variable(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("HEADWAY_BULK_RESERVE", said)
    with pytest.raises(ConfigError, match=r"^HEADWAY_BULK_RESERVE: must be"):
        load_settings()
