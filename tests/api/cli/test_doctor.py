"""`headway doctor` says what is wrong with Redis, the disk and the set-up, and what to do."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from api.cli.doctor import Finding, check_disk, check_pools, check_redis, durability, examine, memory
from broker.config import Config
from broker.settings import Settings


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
