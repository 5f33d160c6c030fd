"""The `headway` program: version, exit codes, and errors as one line on standard error."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest


def headway(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-m", "api.cli.main", *words], env=env, capture_output=True, text=True, check=False
    )


def test_version_is_the_distributions() -> None:
    assert headway("--version").stdout == f"headway {version('headway')}\n"


def test_help_names_the_commands() -> None:
    output = headway("--help").stdout
    assert all(name in output for name in ("up", "down", "api", "worker", "job", "batch", "chat", "doctor"))


@pytest.mark.parametrize("command", ["up", "down", "api", "doctor"])
def test_a_wrong_setting_is_one_line_on_stderr_and_exit_code_1(command: str, tmp_path: Path) -> None:
    result = headway(command, HEADWAY_PORT="99999", HEADWAY_HOME=str(tmp_path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("headway: HEADWAY_PORT: ")
    assert result.stderr.count("\n") == 1


def test_client_commands_without_a_headway_say_how_to_start_one(tmp_path: Path) -> None:
    result = headway("chat", "hello", HEADWAY_HOME=str(tmp_path), HEADWAY_URL="")
    assert result.returncode == 1
    assert "headway up" in result.stderr


def test_worker_becomes_the_workers_own_program_with_its_flags() -> None:
    result = headway("worker", "--help")
    assert result.returncode == 0
    assert "--pool" in result.stdout
