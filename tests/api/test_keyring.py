"""Keys and whose they are."""

import hashlib
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.keyring import Keyring
from broker.config import Config
from broker.errors import ConfigError
from broker.settings import Settings
from tests.broker.test_tenants import FILE, load


def test_keys_are_found_by_value_variable_and_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "k3, k4")
    digest = hashlib.sha256(b"k5").hexdigest()
    config = load(tmp_path, FILE + f"  - {{name: third, sha256: [{digest}]}}\n")
    ring = Keyring(Settings(api_keys=(SecretStr("k0"),)), config)
    owners = {key: ring.find(key.encode()) for key in ("k0", "k1", "k2", "k3", "k4", "k5", "k6", "")}
    names = {key: owner and owner.name for key, owner in owners.items()}
    assert names == {
        "k0": "default",
        "k1": "acme",
        "k2": "acme",
        "k3": "other",
        "k4": "other",
        "k5": "third",
        "k6": None,
        "": None,
    }
    assert not ring.is_open
    assert Keyring(Settings(), Config()).is_open


def test_variable_that_is_not_set_and_a_key_of_two_refuse_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTHER_KEY", raising=False)
    with pytest.raises(ConfigError, match="OTHER_KEY, the key of 'other', is not set"):
        Keyring(Settings(), load(tmp_path, FILE))
    monkeypatch.setenv("OTHER_KEY", "k2")
    with pytest.raises(ConfigError, match="'acme' and 'other' have a key in common"):
        Keyring(Settings(), load(tmp_path, FILE))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_open_address_needs_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"HEADWAY_API_KEYS .* tenants in headway\.yaml"):
        Keyring(Settings(host=host), Config())
    assert not Keyring(Settings(host=host, api_keys=(SecretStr("k"),)), Config()).is_open
    monkeypatch.setenv("OTHER_KEY", "k3")
    assert not Keyring(Settings(host=host), load(tmp_path, FILE)).is_open
    only_default = load(tmp_path, "tenants: [{name: default, max_running: 3}]")
    assert Keyring(Settings(), only_default).anybody.max_running == 3
    with pytest.raises(ConfigError):
        Keyring(Settings(host=host), only_default)
