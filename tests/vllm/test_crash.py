"""kill -9 of vLLM while it answers: nobody hangs, nothing is lost, and it is used again when it is back."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conditions import wait_until_sync
from tests.vllm.conftest import Front

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture
def front_with_crash(front: Front) -> Iterator[Front]:
    """vLLM is back after the test, whatever happened in it."""
    yield front
    if front.vllm.process is None:
        front.vllm.start()
    wait_until_sync(lambda: front.worker()["state"] == "ready", timeout_s=60, what="the worker is ready")


def payloads(answer: httpx.Response) -> Iterator[dict[str, object]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def test_stream_that_had_begun_ends_with_an_error_and_a_polled_job_is_run_again(
    front_with_crash: Front,
) -> None:
    front = front_with_crash
    polled = front.submit(LONG | {"class": "P1"})
    body = {"model": "v", "messages": [{"role": "user", "content": "Story."}], "stream": True} | LONG
    with front.http.stream("POST", "/v1/chat/completions", json=body, timeout=60) as answer:
        chunks = payloads(answer)
        assert "error" not in next(chunks)
        wait_until_sync(lambda: front.running() == 2, what="both run")
        front.vllm.kill()
        last = list(chunks)[-1]
    assert "error" in last
    wait_until_sync(lambda: front.worker()["state"] == "unavailable", timeout_s=30, what="it is known")
    waiting = front.submit()
    front.vllm.start()
    job = front.ended(polled)
    assert job["status"] == "succeeded"
    assert job["attempts"]["errors"] >= 1
    assert job["usage"]["completion_tokens"] == LONG["max_tokens"]
    assert front.ended(waiting)["status"] == "succeeded"
