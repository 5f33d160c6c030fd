"""A batch from the shell: 200 lines in, 200 answers out, seen in Flower; bad lines do not sink the others."""

import json
import re
from pathlib import Path

import httpx

from tests.conditions import wait_until_sync
from tests.e2e.stack import Stack

LINES = 200


TABLE = {
    "draw": "1",
    "start": "0",
    "length": "500",
    "search[value]": "",
    "order[0][column]": "0",
    "order[0][dir]": "asc",
    "columns[0][data]": "name",
}


def flower_page(stack: Stack, path: str, **query: str) -> str:
    """What a person's browser would load."""
    url = next(part["url"] for part in stack.parts if part["kind"] == "flower")
    return httpx.get(f"{url}{path}", params=query, timeout=20, follow_redirects=True).text


def test_two_hundred_prompts_are_answered_and_flower_shows_them(stack: Stack, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"Say {n}.", "max_tokens": 6}) + "\n" for n in range(LINES))
    )
    out = tmp_path / "answers.jsonl"
    words = ("batch", "submit", str(prompts), "--model", "small", "--wait", "--out", str(out))
    done = stack.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"line-{n}" for n in range(1, LINES + 1)]
    assert all(answer["response"]["status_code"] == 200 for answer in answers)
    (batch_id,) = set(re.findall(r"batch_[a-z0-9]+", done.stdout + done.stderr))
    wait_until_sync(
        lambda: batch_id in flower_page(stack, "/tasks/datatable", **TABLE),
        what="Flower lists the batch's slices",
    )
    assert "headway.job" in flower_page(stack, "/tasks/datatable", **TABLE), (
        "and the jobs on the engine workers"
    )
    workers = flower_page(stack, "/workers")
    assert "engine@small" in workers
    assert "batch@" in workers


def test_bad_lines_come_back_as_errors_beside_the_good_answers(stack: Stack, tmp_path: Path) -> None:
    def line(custom_id: object, **changes: object) -> str:
        body = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        whole = {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body | changes,
        }
        return json.dumps(whole)

    lines = [
        line("a"),
        "not json",
        line("a"),
        line("b", model="gpt-9"),
        line("c", temperature="hot"),
        line("d"),
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    with stack.http() as client, (tmp_path / "in.jsonl").open("rb") as file:
        uploaded = client.post("/v1/files", files={"file": file}, data={"purpose": "batch"}).json()
        asked = {
            "input_file_id": uploaded["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch_id = client.post("/v1/batches", json=asked).json()["id"]
        batch = wait_until_sync(
            lambda: (b := client.get(f"/v1/batches/{batch_id}").json())["status"] == "completed" and b,
            timeout_s=30,
        )
        good, bad = (
            [json.loads(line) for line in client.get(f"/v1/files/{batch[name]}/content").text.splitlines()]
            for name in ("output_file_id", "error_file_id")
        )
    assert batch["request_counts"] == {"total": 6, "completed": 2, "failed": 4}
    assert [answer["custom_id"] for answer in good] == ["a", "d"]
    assert len(bad) == 4
    assert all(entry["error"] or entry["response"]["status_code"] == 400 for entry in bad)


def test_an_empty_batch_file_fails_with_its_reason(stack: Stack) -> None:
    with stack.http() as client:
        answer = client.post("/v1/files", files={"file": ("empty.jsonl", b"")}, data={"purpose": "batch"})
        if answer.status_code == 200:
            asked = {
                "input_file_id": answer.json()["id"],
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
            batch_id = client.post("/v1/batches", json=asked).json()["id"]
            ended = wait_until_sync(
                lambda: (b := client.get(f"/v1/batches/{batch_id}").json())["status"] == "failed" and b
            )
            assert "empty" in json.dumps(ended["errors"])
        else:
            assert answer.status_code == 400
