"""What is said at the start: engines that do not answer, and how to call the commands."""

import sys
from pathlib import Path

import pytest

from api.cli.announce import command_line, pool_lines
from api.cli.listener import listen, url_of
from broker.config import Config, ModelConfig


async def test_an_engine_that_does_not_answer_is_named_with_its_pool() -> None:
    with listen("127.0.0.1", 0) as sock:
        url = url_of(sock, host="127.0.0.1")
    lines = await pool_lines(Config(models=(ModelConfig(pool="a"), ModelConfig(pool="b", engine=url))))
    assert "pools a: the embedded" in lines[0]
    assert f"pool b: its engine at {url} does not answer; requests to it get 503" in lines[1]


def test_where_the_commands_are_is_said_unless_path_leads_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / ".venv" / "bin"
    own.mkdir(parents=True)
    (own / "headway").touch(mode=0o755)
    (own / "activate").touch()
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert (
        command_line().strip() == "commands: .venv/bin/headway chat 'Hello', or first: . .venv/bin/activate"
    )
    monkeypatch.setenv("PATH", str(own))
    assert command_line() == ""
