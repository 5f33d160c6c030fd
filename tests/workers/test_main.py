"""The worker's command line: a pool that nobody configured is served, and pointed out."""

import logging

import pytest

from broker.config import Config, ModelConfig
from broker.errors import ConfigError
from broker.job import ServiceClass
from workers.engine import EngineLoad
from workers.main import main
from workers.options import parse, warn_of_unknown_pool
from workers.recent import used_share


@pytest.mark.parametrize(("pool", "warned"), [("small", False), ("smal", True)])
def test_a_pool_that_is_not_configured_is_allowed_with_a_warning_that_names_those_that_are(
    pool: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="headway.worker"):
        options = parse(["--pool", pool, "--engine", "http://127.0.0.1:9"], Config())
        warn_of_unknown_pool(options.pool, Config())
    assert options.pool == pool
    assert [("small, large" in text, pool in text) for text in caplog.messages] == [(True, True)] * warned


def test_the_help_names_the_variable_that_says_where_the_queue_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], Config())
    assert "HEADWAY_REDIS_URL" in capsys.readouterr().out


HOT = Config(models=(ModelConfig(pool="hot", shards=3, speed=2.0), ModelConfig(pool="cold")))


def test_shards_are_those_of_the_configuration() -> None:
    options = parse(["--pool", "hot", "--shard", "2"], HOT)
    assert (options.queues, options.shard, options.speed) == ((("hot~0", "hot~1", "hot~2"),), 2, 2.0)
    assert parse(["--pool", "cold"], HOT).queues == (("cold",),)


@pytest.mark.parametrize("flags", [["--pool", "cold,hot,cold"], ["--pool", "cold", "--pool", "hot"]])
def test_several_pools_are_served_by_one_engine_that_of_the_first(flags: list[str]) -> None:
    options = parse(flags, HOT)
    assert (options.pool, options.queues) == ("cold", (("cold",), ("hot~0", "hot~1", "hot~2")))
    assert options.speed == 1.0


def test_classes_are_all_unless_said_otherwise() -> None:
    assert parse(["--pool", "hot"], HOT).classes == frozenset(ServiceClass)
    assert parse(["--pool", "hot", "--classes", "p2, P3"], HOT).classes == {ServiceClass.P2, ServiceClass.P3}


@pytest.mark.parametrize(
    "flags",
    [
        ["--shard", "3"],
        ["--shard", "-1"],
        ["--classes", "P4"],
        ["--classes", ""],
        ["--kv-tokens", "0"],
        ["--kv-tokens", "-5"],
        ["--engine", ""],
        ["--engine", "http://"],
        ["--engine", "http://:8000"],
        ["--engine", "http://h:99999"],
        ["--pool", "hot~1"],
        ["--pool", "a,"],
    ],
)
def test_what_is_wrong_with_the_command_line_is_said(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=flags[0]):
        parse(["--pool", "hot", *flags], HOT)


@pytest.mark.parametrize(
    ("load", "planned", "expected"),
    [
        (EngineLoad(kv_used_share=0.01, kv_total_tokens=400_000), 4000, 1.0),
        (EngineLoad(kv_used_share=0.01, kv_total_tokens=40_000), 4000, 0.1),
        (EngineLoad(kv_used_share=0.3, kv_total_tokens=4000), None, 0.3),
        (EngineLoad(kv_used_share=0.3), 4000, 0.3),
        (EngineLoad(), 4000, None),
    ],
)
def test_the_cache_is_shown_as_full_as_what_is_planned_with(
    load: EngineLoad, planned: int | None, expected: float | None
) -> None:
    assert used_share(load, planned) == pytest.approx(expected)


@pytest.mark.parametrize("address", ["http://", "http://h:99999"])
def test_an_engine_without_an_address_ends_the_program_with_code_2_at_once(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--pool", "small", "--engine", address]) == 2
    assert f"--engine {address!r}: names no host, or no port" in capsys.readouterr().err
