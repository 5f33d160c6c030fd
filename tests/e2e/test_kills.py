"""kill -9 of each part in the middle of 200 jobs: every accepted job ends once, every line is answered once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conditions import wait_until_sync
from tests.e2e.stack import Stack

JOBS = 200


def write_batch(path: Path, lines: int, tokens: int) -> None:
    with path.open("w") as file:
        for number in range(lines):
            body = {
                "model": "small" if number % 2 else "large",
                "messages": [{"role": "user", "content": f"Say {number}."}],
                "max_tokens": tokens,
            }
            line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def batch_status(stack: Stack, batch_id: str) -> dict[str, Any]:
    """The batch, or nothing while the API is being started again."""
    try:
        with stack.http() as client:
            answer = client.get(f"/v1/batches/{batch_id}")
    except httpx.TransportError:
        return {}
    return dict(answer.json()) if answer.status_code == 200 else {}


def jobs_done(stack: Stack) -> int:
    """Jobs of class P2 that have succeeded, over all pools, since the stack was started."""
    with stack.redis() as client:
        return sum(
            int(client.hget(f"hw:{{{pool}}}:stats", "succeeded:2") or 0) for pool in ("small", "large")
        )


@pytest.mark.parametrize("victim", ["worker", "celery", "api", "redis"])
def test_batch_of_200_survives_the_loss_of(stack: Stack, victim: str, tmp_path: Path) -> None:
    write_batch(tmp_path / "in.jsonl", JOBS, tokens=6)
    with stack.http() as client, (tmp_path / "in.jsonl").open("rb") as file:
        uploaded = client.post("/v1/files", files={"file": file}, data={"purpose": "batch"}).json()
        asked = {
            "input_file_id": uploaded["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch = client.post("/v1/batches", json=asked).json()
    before = jobs_done(stack)
    wait_until_sync(lambda: jobs_done(stack) >= before + JOBS // 10, timeout_s=60, what="a tenth is done")
    stack.kill(victim)
    wait_until_sync(
        lambda: batch_status(stack, batch["id"]).get("status") == "completed",
        timeout_s=120,
        what=f"the batch completes without {victim}",
    )
    with stack.http() as client:
        ended = client.get(f"/v1/batches/{batch['id']}").json()
        output = client.get(f"/v1/files/{ended['output_file_id']}/content").text
    answered = Counter(json.loads(line)["custom_id"] for line in output.splitlines())
    assert answered == Counter({f"c{number}": 1 for number in range(JOBS)})
    assert ended["request_counts"] == {"total": JOBS, "completed": JOBS, "failed": 0}


def test_polled_jobs_all_end_when_a_worker_is_killed(stack: Stack) -> None:
    ask = {"messages": [{"role": "user", "content": "Say a word."}], "max_tokens": 6, "class": "P1"}
    with stack.http() as client:
        ids = [client.post("/v1/jobs", json=ask | {"model": "small"}).json()["id"] for _ in range(40)]
        wait_until_sync(
            lambda: client.get(f"/v1/jobs/{ids[5]}").json()["status"] == "succeeded", timeout_s=30
        )
        stack.kill("worker", name="small")
        ended = [client.get(f"/v1/jobs/{job_id}", params={"wait": 60}).json() for job_id in ids]
    assert Counter(job["status"] for job in ended) == {"succeeded": 40}
