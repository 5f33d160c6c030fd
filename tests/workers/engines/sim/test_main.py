"""The program: what it prints, how it ends, and Headway's worker serving jobs from it end to end."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.connection import Pipe
from broker.job import Forecast, JobView, ServiceClass, Status, Submission, new_job_id
from broker.producer import Producer
from tests.conditions import wait_until

HEADWAY = Path(sys.executable).with_name("headway")
Program = Callable[..., tuple["subprocess.Popen[str]", dict[str, Any]]]


@pytest.fixture
def program() -> Iterator[Program]:
    """`process, ready = program("--flag", …)`: running, on a free port."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
        argv = [str(HEADWAY), "sim-engine", "--port", "0", "--speed", "50", *words]
        processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        stdout = processes[-1].stdout
        assert stdout is not None
        return processes[-1], json.loads(stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_it_says_where_it_serves_and_ends_on_sigterm_though_streams_are_open(program: Program) -> None:
    process, ready = program("--model", "llama", "--speed", "1")
    assert (ready["model"], ready["pid"]) == ("llama", process.pid)
    body = {"prompt": "x", "max_tokens": 5000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{ready['url']}/v1/completions", json=body, timeout=20) as response:
        next(response.iter_lines())
        process.terminate()
        assert process.wait(timeout=20) == 0


def test_a_crash_ends_the_process_in_the_middle_of_a_stream_and_its_request_is_in_the_log(
    program: Program, tmp_path: Path
) -> None:
    log = tmp_path / "requests.jsonl"
    process, ready = program("--crash-after", "1", "--request-log", str(log))
    body = {"prompt": "x", "max_tokens": 900, "stream": True, "user": "me"}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{ready['url']}/v1/completions", json=body)
    assert process.wait(timeout=20) == 70
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["user"], line["id"].partition("-")[0], set(line)) == ("me", "cmpl", {"id", "user"})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--gpu", "abacus"], "abacus"),
        (["--kv-tokens", "100"], "max_model_len"),
        (["--speed", "0"], "--speed"),
        (["--error-rate", "2"], "error_rate"),
    ],
)
def test_a_wrong_value_refuses_to_start_and_names_itself(words: list[str], named: str) -> None:
    done = subprocess.run(
        [HEADWAY, "sim-engine", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert named in done.stderr


async def test_jobs_go_through_headway_to_it_and_come_back(program: Program, redis_url: str) -> None:
    _, ready = program("--model", "llama")
    argv = [HEADWAY, "worker", "--pool", "llama", "--engine", ready["url"], "--dialect", "vllm"]
    worker = await asyncio.create_subprocess_exec(*argv, env=os.environ | {"HEADWAY_REDIS_URL": redis_url})
    pipe = Pipe(redis_url)
    producer = Producer(pipe)
    jobs = [_job(n) for n in range(20)]
    for job in jobs:
        await producer.submit(job)

    async def ended() -> list[JobView] | None:
        views = [await producer.get(job.job_id) for job in jobs]
        return views if all(view.status.terminal for view in views) else None

    try:
        views: list[JobView] = await wait_until(ended, timeout_s=40, what="all jobs end")
    finally:
        worker.terminate()
        assert await worker.wait() == 0
        await pipe.close()
    assert {view.status for view in views} == {Status.SUCCEEDED}
    async with httpx.AsyncClient() as client:
        samples = (await client.get(f"{ready['url']}/metrics")).text
    assert 'request_success_total{engine="0",finished_reason="length",model_name="llama"} 20.0' in samples


def _job(number: int) -> Submission:
    body = {"prompt": f"job {number}", "max_tokens": 10, "ignore_eos": True}
    return Submission(
        new_job_id("llama"),
        ServiceClass.P0,
        "/v1/completions",
        json.dumps(body).encode(),
        Forecast(5, 10, 0.1),
    )
