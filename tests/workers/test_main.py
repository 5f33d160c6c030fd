"""The worker's command line: a pool that nobody configured is served, and pointed out."""

import logging

import pytest

from broker.config import Config
from workers.main import parse, warn_of_unknown_pool


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
