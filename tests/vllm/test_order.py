"""Headway's classes in vLLM's own queue, calling requests off, and vLLM's word that it is full."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from deploy.vllm_cpu.server import MODEL
from tests.conditions import wait_until_sync
from tests.vllm.conftest import QUEUED, RUNNING, SLOTS, Front

ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


def test_p0_overtakes_the_p2_jobs_that_wait_inside_vllm(front: Front) -> None:
    """Two run at a time; in order of arrival the P0 job would be the last to start."""
    bulk = {"class": "P2", "max_tokens": 60, "ignore_eos": True}
    batch = [front.submit(bulk, content=f"Story {number}.") for number in range(SLOTS - 1)]
    wait_until_sync(lambda: front.waits() >= SLOTS - 1 - RUNNING, what="vLLM's queue is full")
    urgent = front.ended(front.submit({"class": "P0", "max_tokens": 4}, content="Quick."))
    done = [job for job in map(front.job, batch) if job["status"] == "succeeded"]
    assert urgent["status"] == "succeeded"
    assert len(done) <= RUNNING
    assert {front.ended(job_id)["status"] for job_id in batch} == {"succeeded"}


def test_cancelled_job_is_freed_inside_vllm(front: Front) -> None:
    job_id = front.submit(ENDLESS)
    wait_until_sync(lambda: front.running() == 1, what="it runs")
    assert front.http.delete(f"/v1/jobs/{job_id}").json()["status"] == "cancelled"
    wait_until_sync(front.idle, timeout_s=5, what="vLLM has let go of it")
    assert front.vllm.metrics()["kv_cache_usage_perc"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_frees_its_request_inside_vllm(front: Front, stream: bool) -> None:
    body = {"model": "v", "messages": [{"role": "user", "content": "Story."}], "stream": stream} | ENDLESS
    data = json.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: headway\r\nContent-Length: {len(data)}\r\n\r\n"
    address = front.http.base_url
    with socket.create_connection((address.host, address.port)) as client:
        client.sendall((head + data).encode())
        wait_until_sync(lambda: front.running() == 1, what="it runs")
    wait_until_sync(front.idle, timeout_s=5, what="vLLM has let go of it")


@contextmanager
def full(front: Front) -> Iterator[None]:
    """Somebody else fills vLLM to its limit, past Headway."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Story."}], "stream": True} | ENDLESS
    with httpx.Client(base_url=front.vllm.url, timeout=60) as client, ExitStack() as streams:
        for _ in range(QUEUED):
            streams.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
        wait_until_sync(lambda: front.running() + front.waits() == QUEUED, what="vLLM is full")
        yield


def test_full_engine_keeps_the_job_in_the_queue_and_is_no_failure(front: Front) -> None:
    def refused() -> float:
        return front.vllm.metrics()["admission_rejections_total"]

    before = refused()
    with full(front):
        job_id = front.submit()
        wait_until_sync(lambda: refused() > before, what="vLLM refuses it")
        wait_until_sync(lambda: front.job(job_id)["status"] == "queued", what="it waits again")
        assert front.worker()["state"] == "ready"
    job = front.ended(job_id)
    assert job["status"] == "succeeded"
    assert job["attempts"]["errors"] == job["attempts"]["deaths"] == 0
