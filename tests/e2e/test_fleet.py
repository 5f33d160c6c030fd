"""Operators steer a running Headway from the shell: pools, and one worker among others."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from broker.steering import DISMISSED
from tests.conditions import wait_until_sync
from tests.e2e.stack import HEADWAY, Stack


def workers(stack: Stack) -> dict[int, dict[str, Any]]:
    """Of the pool `small`, by pid."""
    with stack.http() as client:
        pools = client.get("/v1/fleet").json()["pools"]
    return {worker["pid"]: worker for pool in pools if pool["pool"] == "small" for worker in pool["workers"]}


def until(stack: Stack, pid: int, state: str) -> None:
    wait_until_sync(lambda: workers(stack).get(pid, {}).get("state") == state, timeout_s=60, what=state)


@pytest.fixture
def joined(stack: Stack) -> Iterator["subprocess.Popen[bytes]"]:
    """One more worker, which nobody starts again."""
    words = [str(HEADWAY), "worker", "--pool", "small", "--engine", "llamacpp", "--slots", "2"]
    with (stack.home / "logs" / "joined.log").open("wb") as log:
        process = subprocess.Popen(words, env=stack.environment, cwd=stack.home, stdout=log, stderr=log)
    until(stack, process.pid, "ready")
    yield process
    process.kill()
    process.wait(timeout=10)


def test_one_worker_is_paused_resumed_and_drained(stack: Stack, joined: "subprocess.Popen[bytes]") -> None:
    worker_id = workers(stack)[joined.pid]["id"]
    for wish, state in (("pause", "paused"), ("resume", "ready")):
        told = stack.run("fleet", wish, "small", "--worker", worker_id)
        assert told.returncode == 0, told.stderr
        until(stack, joined.pid, state)
    assert stack.run("fleet", "drain", "small", "--worker", worker_id).returncode == 0
    assert joined.wait(timeout=60) == DISMISSED
    wait_until_sync(lambda: joined.pid not in workers(stack), timeout_s=30)
    unknown = stack.run("fleet", "drain", "small", "--worker", worker_id)
    assert (unknown.returncode, worker_id in unknown.stderr) == (1, True)
    assert {worker["state"] for worker in workers(stack).values()} == {"ready"}


def test_pool_is_drained_and_resumed(stack: Stack) -> None:
    drained = stack.run("fleet", "drain", "small")
    assert "draining" in drained.stdout
    refused = stack.run("job", "submit", "hello", "--model", "small")
    assert (refused.returncode, "drained" in refused.stderr) == (1, True)
    assert "open" in stack.run("fleet", "resume", "small").stdout
    accepted = stack.run("job", "submit", "hello", "--model", "small", "--param", "max_tokens=2", "--wait")
    assert accepted.returncode == 0, accepted.stderr


def test_fleet_is_a_table_of_pools_and_workers(stack: Stack) -> None:
    lines = stack.run("fleet").stdout.splitlines()
    assert lines[0].split()[:4] == ["POOL", "STATE", "WORKERS", "SLOTS"]
    assert [line.split()[:3] for line in lines[1:3]] == [["small", "open", "1"], ["large", "open", "1"]]
    assert lines[4].split()[:3] == ["WORKER", "POOL", "STATE"]
    assert [line.split()[1:3] for line in lines[5:]] == [["small", "ready"], ["large", "ready"]]


def test_workers_tell_their_means_and_pace(stack: Stack) -> None:
    asked = ("--param", "max_tokens=64", "--param", "ignore_eos=true", "--wait")
    told = stack.run("job", "submit", "Count to a hundred.", "--model", "small", *asked)
    assert told.returncode == 0, told.stderr

    def known() -> bool:
        return all(worker["minute"] and worker["tpot_s"] for worker in workers(stack).values())

    wait_until_sync(known, what="means and pace of every worker")
