"""Keys and whose they are."""

import hashlib
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.keyring import Keyring, check_door
from api.services import open_services
from broker.api_keys import KeyStore
from broker.config import Config
from broker.connection import Pipe
from broker.errors import ConfigError, RedisAway
from broker.limits import Quota
from broker.settings import Settings
from broker.tenants import Access
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
    with pytest.raises(
        ConfigError, match=r"HEADWAY_API_KEYS .* tenants in headway\.yaml, .*headway keys create"
    ):
        Keyring(Settings(host=host), Config()).check_door()
    Keyring(Settings(host=host, api_keys=(SecretStr("k"),)), Config()).check_door()
    monkeypatch.setenv("OTHER_KEY", "k3")
    keyed = load(tmp_path, FILE)
    ring = Keyring(Settings(host=host), keyed)
    ring.check_door()
    only_default = load(tmp_path, "tenants: [{name: default, max_running: 3}]")
    assert Keyring(Settings(), only_default).anybody.max_running == 3
    with pytest.raises(ConfigError):
        ring.adopt(only_default)
    assert ring.find(b"k1") is not None, "what was there before stays"
    ring.learn((), ever=True)
    ring.adopt(only_default)
    assert not ring.is_open


async def test_an_open_address_starts_with_a_key_that_only_redis_has(redis_url: str) -> None:
    settings = Settings(redis_url=redis_url, host="0.0.0.0")
    with pytest.raises(ConfigError, match="headway keys create"):
        async with open_services(settings, Config()):
            pass
    pipe = Pipe(redis_url)
    with pytest.raises(ConfigError, match="headway keys create"):
        await check_door(settings, Config(), pipe=pipe)
    await KeyStore(pipe).create("acme", name="ci", access=Access(), quota=Quota())
    await check_door(settings, Config(), pipe=pipe)
    await pipe.close()
    keyring = Keyring(settings, Config())
    async with open_services(settings, Config(), keyring=keyring):
        assert not keyring.is_open


async def test_an_open_address_does_not_start_while_redis_cannot_say_whether_there_are_keys() -> None:
    with pytest.raises(RedisAway):
        async with open_services(Settings(redis_url="redis://127.0.0.1:9/0", host="0.0.0.0"), Config()):
            pass
