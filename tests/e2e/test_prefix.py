"""A prompt that an engine has read before is not read again, and everybody who asks is told so."""

from typing import Any

from tests.conditions import wait_until_sync
from tests.e2e.stack import Stack

SYSTEM = "You answer in one word. " * 20


def ask(stack: Stack, question: str) -> dict[str, Any]:
    """The job, ended."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    job = {"model": "small", "messages": messages, "max_tokens": 4, "class": "P1"}
    with stack.http() as client:
        accepted = client.post("/v1/jobs", json=job).json()
        ended: dict[str, Any] = client.get(f"/v1/jobs/{accepted['id']}", params={"wait": 60}).json()
    assert ended["status"] == "succeeded", ended
    return ended


def hit_shares(stack: Stack) -> list[float | None]:
    """Of the pool `small`, and of its worker."""
    with stack.http() as client:
        pools = client.get("/v1/fleet").json()["pools"]
    pool = next(pool for pool in pools if pool["pool"] == "small")
    return [pool["prefix_hit_share"], *(worker["prefix_hit_share"] for worker in pool["workers"])]


def test_the_second_question_under_one_system_prompt_finds_it_cached(stack: Stack) -> None:
    ask(stack, "What is the colour of grass?")
    usage = ask(stack, "What is the colour of snow?")["usage"]
    assert usage["cached_tokens"] > 80
    assert usage["cached_tokens"] < usage["prompt_tokens"]
    assert "recounted" not in usage
    wait_until_sync(lambda: all(hit_shares(stack)), timeout_s=30)
