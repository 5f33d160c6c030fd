"""`headway doctor` says what is wrong with Redis, the disk and the set-up, and what to do."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from api.cli.doctor import (
    check_disk,
    check_home,
    check_keys,
    check_open_address,
    check_redis,
    durability,
    examine,
    memory,
)
from api.cli.doctor_pools import check_pools
from api.cli.finding import Finding
from api.cli.home import Home, Identity
from api.cli.listener import listen, url_of
from broker.api_keys import KeyStore
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.limits import Quota
from broker.settings import Settings
from broker.tenants import Access, TenantConfig


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


async def test_a_fit_redis_passes(redis_url: str) -> None:
    findings = await check_redis(redis_url)
    assert levels(findings) == ["ok"] * 4
    assert [finding.topic for finding in findings] == ["redis", "redis", "redis", "clock"]


async def test_an_evicting_redis_fails(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        findings = await check_redis(redis_url)
        client.config_set("maxmemory-policy", "noeviction")
    assert levels(findings) == ["fail"]
    assert "CONFIG SET maxmemory-policy noeviction" in findings[0].text


async def test_an_absent_redis_fails() -> None:
    findings = await check_redis("redis://127.0.0.1:9/0")
    assert levels(findings) == ["fail"]
    assert "HEADWAY_REDIS_URL" in findings[0].text


def test_durability_and_memory_are_judged() -> None:
    assert levels(list(durability({"aof_enabled": 0}))) == ["warn"]
    assert levels(list(durability({"aof_enabled": 1, "aof_last_write_status": "err"}))) == ["fail"]
    assert levels(list(memory({"maxmemory": 100, "used_memory": 95}))) == ["fail"]
    assert levels(list(memory({"maxmemory": 100, "used_memory": 10}))) == ["ok"]


def test_a_tenants_variable_without_a_key_fails_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(tenants=(TenantConfig(name="acme", key_env="ACME_KEY"),))
    monkeypatch.delenv("ACME_KEY", raising=False)
    [finding] = check_keys(Settings(), config)
    assert (finding.level, "ACME_KEY" in finding.text) == ("fail", True)
    monkeypatch.setenv("ACME_KEY", "k")
    assert not list(check_keys(Settings(), config))


async def test_an_open_address_fails_until_there_is_a_key_also_in_redis(redis_url: str) -> None:
    settings = Settings(redis_url=redis_url, host="0.0.0.0")
    [finding] = await check_open_address(settings, Config())
    assert (finding.level, "headway keys create" in finding.text) == ("fail", True)
    pipe = Pipe(redis_url)
    await KeyStore(pipe).create("acme", name="ci", access=Access(), quota=Quota())
    await pipe.close()
    assert await check_open_address(settings, Config()) == []


async def test_a_pool_without_a_worker_fails_and_names_the_command(redis_url: str, tmp_path: Path) -> None:
    findings = await check_pools(Settings(redis_url=redis_url, home=tmp_path), Config())
    assert levels(findings) == ["fail", "fail"]
    assert "headway worker --pool small --engine llamacpp" in findings[0].text


@pytest.mark.parametrize(("free", "level"), [(2**40, "ok"), (2**30, "warn"), (2**20, "fail")])
def test_the_disk_is_judged_by_what_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    assert levels(list(check_disk(tmp_path / "not" / "yet" / "made"))) == [level]


def test_it_fails_if_one_finding_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    monkeypatch.setenv("HEADWAY_REDIS_URL", "redis://127.0.0.1:9/0")
    said: list[str] = []
    assert not examine(say=said.append)
    assert any(line.startswith("fail  redis") for line in said)


async def test_an_engine_that_does_not_answer_is_named_although_its_worker_runs(
    redis_url: str, tmp_path: Path
) -> None:
    me = Identity.of(os.getpid())
    Home(tmp_path).write_up({"parts": [{"name": "worker-a", "pid": me.pid, "started": me.started}]})
    with listen("127.0.0.1", 0) as sock:
        url = url_of(sock, host="127.0.0.1")
    config = Config(models=(ModelConfig(pool="a", engine=url),))
    worker, engine = await check_pools(Settings(redis_url=redis_url, home=tmp_path), config)
    assert f"pid {me.pid}" in worker.text
    assert "headway worker" not in worker.text
    assert engine.level == "fail"
    assert f"its engine at {url} does not answer" in engine.text


def test_when_nothing_runs_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (finding,) = check_home(Settings(home=tmp_path))
    assert "start it with `headway up`" in finding.text


def test_files_that_cannot_be_opened_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    monkeypatch.setenv("HEADWAY_FILES_URL", "nonsense://x")
    monkeypatch.setenv("HEADWAY_REDIS_URL", "redis://127.0.0.1:9/0")
    said: list[str] = []
    assert not examine(say=said.append)
    assert any(line.startswith("fail  files     HEADWAY_FILES_URL") for line in said)
