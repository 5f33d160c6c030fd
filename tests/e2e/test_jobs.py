"""Submit and poll, events that resume, cancellation, classes; single P2 jobs through Celery."""

import httpx
import pytest

from tests.conditions import wait_until_sync
from tests.e2e.stack import Stack

ASK = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 8, "model": "small"}


def events(response: httpx.Response) -> list[dict[str, str]]:
    """Parsed SSE events of a finished response."""
    found = []
    for block in response.text.split("\n\n"):
        fields = [line.partition(": ") for line in block.splitlines() if not line.startswith(":")]
        if fields:
            found.append({name: value for name, _, value in fields})
    return found


@pytest.mark.parametrize("service_class", ["P0", "P1", "P2", "P3"])
def test_job_of_each_class_is_accepted_and_answered(stack: Stack, service_class: str) -> None:
    with stack.http() as client:
        accepted = client.post("/v1/jobs", json=ASK | {"class": service_class})
        assert accepted.status_code == 202
        job = accepted.json()
        assert (job["status"], job["class"], job["pool"]) == ("queued", service_class, "small")
        assert job["predicted"].keys() >= {"start_s", "run_s", "output_tokens"}
        done = client.get(f"/v1/jobs/{job['id']}", params={"wait": 30}).json()
    assert done["status"] == "succeeded", done
    assert done["result"]["choices"][0]["message"]["content"]
    assert done["result"]["usage"]["completion_tokens"] > 0
    assert [step["event"] for step in done["story"]][-1] == "succeeded"
    assert done["forecast"]["output_tokens"]["actual"] == done["result"]["usage"]["completion_tokens"]


def test_events_resume_after_any_id(stack: Stack) -> None:
    with stack.http() as client:
        job = client.post("/v1/jobs", json=ASK | {"class": "P1"}).json()
        full = events(client.get(f"/v1/jobs/{job['id']}/events"))
        chunks = [event for event in full if event.get("event") == "chunk"]
        assert len(chunks) > 3
        for place, event in enumerate(chunks):
            again = events(client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": event["id"]}))
            rest = [e["data"] for e in again if e.get("event") == "chunk"]
            assert rest == [e["data"] for e in chunks[place + 1 :]]


def test_cancelled_job_stops_in_the_engine(stack: Stack) -> None:
    with stack.http() as client:
        job = client.post(
            "/v1/jobs", json=ASK | {"class": "P0", "max_tokens": 2000, "ignore_eos": True}
        ).json()
        wait_until_sync(lambda: client.get(f"/v1/jobs/{job['id']}").json()["status"] == "running")
        assert client.delete(f"/v1/jobs/{job['id']}").json()["status"] == "cancelled"
    wait_until_sync(lambda: stack.busy_slots() == 0, timeout_s=2)


def test_deadline_that_cannot_be_met_is_expired(stack: Stack) -> None:
    with stack.http() as client:
        body = ASK | {"class": "P0", "max_tokens": 4000, "ignore_eos": True, "deadline_s": 0.5}
        job = client.post("/v1/jobs", json=body).json()
        assert client.get(f"/v1/jobs/{job['id']}", params={"wait": 20}).json()["status"] == "expired"
        direct = client.post(
            "/v1/chat/completions",
            json=ASK | {"max_tokens": 4000, "ignore_eos": True},
            headers={"X-Headway-Deadline": "0.5"},
        )
    assert direct.status_code == 504
    wait_until_sync(lambda: stack.busy_slots() == 0, timeout_s=5)


def test_cli_submits_gets_and_chats(stack: Stack) -> None:
    chat = stack.run("chat", "Say hello.", "--model", "small", "--max-tokens", "8")
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.strip()
    doctor = stack.run("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
