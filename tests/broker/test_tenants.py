"""`tenants` and `classes` of headway.yaml: what they mean, and what a wrong entry is told."""

from hashlib import sha256
from pathlib import Path

import pytest

from broker.config import Config, load_config
from broker.errors import ConfigError
from broker.job import ServiceClass
from broker.policy import QueueLimits
from broker.settings import Settings
from broker.tenants import Tenant

FILE = """
models:
  - {pool: small, classes: {P0: {max_queued: 5}}}
  - {pool: large, shards: 4}
classes:
  P0: {max_queued: 200, max_queued_s: 600}
  P2: {max_queued_s: 90}
tenants:
  - {name: acme, keys: [k1, k2], weight: 3, max_running: 16, default_class: P1}
  - {name: other, key_env: OTHER_KEY}
"""


def load(path: Path, text: str) -> Config:
    (path / "h.yaml").write_text(text, "utf-8")
    return load_config(Settings(config=path / "h.yaml"))


def test_limits_of_a_model_go_before_the_general_ones_and_shards_divide_them(tmp_path: Path) -> None:
    limits_of = load(tmp_path, FILE).limits_of(max_queued=1000)
    assert limits_of("small") == QueueLimits(1000, (5, None, None, None), (600.0, None, 90.0, None))
    assert limits_of("large~3") == QueueLimits(250, (50, None, None, None), (150.0, None, 22.5, None))
    assert limits_of("announced") == QueueLimits(1000, (200, None, None, None), (600.0, None, 90.0, None))


def test_tenant_has_what_its_entry_says(tmp_path: Path) -> None:
    config = load(tmp_path, FILE)
    assert config.tenant("acme") == Tenant("acme", 3.0, 16, ServiceClass.P1)
    assert config.tenant("other") == Tenant("other", 1.0)
    assert config.tenant("default").weight == 1.0, "it shares with those that are listed"
    assert Config().tenant("default").weight == 0.0, "without tenants nobody is charged"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants: [{name: 'a b', keys: [k]}]", "tenants.0.name: is no tenant's name"),
        ("tenants: [{name: a, callback_secret: abc}]", "callback_secret: must have at least 8 characters"),
        ("tenants: [{name: a, admin: maybe}]", "tenants.0.admin: must be true or false"),
        ("tenants: [{name: a, pools: [small, nix]}]", "tenants: a: pools: there is no model or route 'nix'"),
        ("tenants: [{name: a, keys: [k]}, {name: b, keys: [l, k]}]", "'a' and 'b' have a key in common"),
        (
            f"tenants: [{{name: a, keys: [k]}}, {{name: b, sha256: [{sha256(b'k').hexdigest()}]}}]",
            "'a' and 'b' have a key in common",
        ),
        ("tenants: [{name: a, keys: ['']}]", "a key of 'a' is empty"),
        ("tenants: [{name: a, keys: [k], weight: 0}]", "tenants.0.weight: "),
        ("tenants: [{name: a, keys: [k], max_running: 0}]", "tenants.0.max_running: "),
        ("tenants: [{name: a, keys: [k], default_class: P4}]", "tenants.0.default_class: "),
        ("tenants: [{name: a, sha256: [abc]}]", "tenants.0.sha256.0: is no SHA-256 of a key"),
        ("tenants: [{name: a, keys: [k]}, {name: a, keys: [l]}]", "two have the same name"),
        ("classes: {P4: {max_queued: 1}}", "classes.P4"),
        ("classes: {P0: {max_queued: 0}}", "classes.P0.max_queued: "),
        (
            "models: [{pool: a, classes: {P0: {most: 1}}}]",
            "models.0.classes.P0.most: is not a known name here",
        ),
    ],
)
def test_wrong_entry_refuses_to_start_and_names_itself(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "k1" not in str(caught.value)


def test_tenant_may_be_given_pools_aliases_and_routes(tmp_path: Path) -> None:
    text = """
models: [{pool: a, aliases: [gpt]}, {pool: b}]
routes: [{name: r, small: a, large: b}]
tenants: [{name: t, keys: [k], pools: [b, gpt, r]}]
"""
    assert load(tmp_path, text).tenant("t").access.pools == {"b", "gpt", "r"}
