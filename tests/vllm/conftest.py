"""A real vLLM on the CPU and a whole Headway in front of it, for all tests of this folder: `make test-vllm`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from deploy.vllm_cpu.server import Vllm, vllm_up
from tests.conditions import wait_until_sync
from tests.e2e.stack import Stack

SLOTS = 8
# So few that vLLM's own queue is seen, and its limit can be reached.
RUNNING, QUEUED = 2, 16
CONFIG = """
models:
  - {{pool: v, engine: "{url}", dialect: vllm, slots: {slots}, aliases: [vllm-model]}}
  - {{pool: found, engine: "{url}"}}
"""


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    with vllm_up("--max-num-seqs", str(RUNNING), "--max-num-queued-reqs", str(QUEUED), log=log) as server:
        yield server


@dataclass(frozen=True)
class Front:
    """Headway over HTTP, and the engine behind it."""

    stack: Stack
    vllm: Vllm
    http: httpx.Client

    def submit(self, fields: dict[str, Any] | None = None, *, content: str = "Tell me a story.") -> str:
        """The id of a job of 8 tokens, with the body's `fields` changed or added."""
        body = {"model": "v", "messages": [{"role": "user", "content": content}], "max_tokens": 8}
        accepted = self.http.post("/v1/jobs", json=body | (fields or {}))
        assert accepted.status_code == 202, accepted.text
        return str(accepted.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.http.get(f"/v1/jobs/{job_id}").json())

    def ended(self, job_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["timings"]["finished_at"] else None

        job: dict[str, Any] = wait_until_sync(look, timeout_s=120, what=f"{job_id} ends")
        return job

    def worker(self, pool: str = "v") -> dict[str, Any]:
        pools = self.http.get("/v1/fleet").json()["pools"]
        return dict(next(entry for entry in pools if entry["pool"] == pool)["workers"][0])

    def running(self) -> float:
        """Requests that vLLM works on, by its own word."""
        return self.vllm.metrics()["num_requests_running"]

    def waits(self) -> float:
        return self.vllm.metrics()["num_requests_waiting"]

    def idle(self) -> bool:
        return self.running() == self.waits() == 0


@pytest.fixture(scope="session")
def front(vllm: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    home = tmp_path_factory.mktemp("headway")
    config: Path = home / "headway.yaml"
    config.write_text(CONFIG.format(url=vllm.url, slots=SLOTS))
    stack = Stack.start(home, HEADWAY_CONFIG=str(config), HEADWAY_ENGINE_LOAD_S="0.2")
    with stack.http() as http:
        yield Front(stack, vllm, http)
    stack.stop()


@pytest.fixture(autouse=True)
def nothing_is_left_running(front: Front) -> Iterator[None]:
    """Each test leaves the engine idle, which also is the rule that is tested most."""
    yield
    wait_until_sync(front.idle, timeout_s=30, what="vLLM is idle")


@pytest.fixture
def sdk(front: Front) -> Iterator[Any]:
    with OpenAI(base_url=f"{front.stack.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
