"""An answer that has begun is not begun again behind the caller's back: only for who has asked for that, and then he is told."""

import asyncio

import httpx
import orjson
import pytest

from broker.scripts import Return
from tests.api.harness import ScriptedWorker, Served, chat, chunk_payload

CHAT = "/v1/chat/completions"
ERROR = b'{"message":"it broke","type":"server_error","code":"engine_broken","param":null}'


async def broken_off(
    served: Served, worker: ScriptedWorker, headers: dict[str, str]
) -> "asyncio.Task[httpx.Response]":
    """A stream of which the first attempt has sent a chunk and failed."""
    asking = asyncio.create_task(served.http.post(CHAT, json=chat(stream=True), headers=headers))
    lease = await worker.claim()
    await worker.append(lease, chunk_payload("half an "), seq=1)
    await worker.consumer.release(lease, Return("error", error=ERROR))
    return asking


async def test_without_the_wish_the_stream_ends_with_the_error(
    served: Served, worker: ScriptedWorker
) -> None:
    response = await (await broken_off(served, worker, {}))
    assert "engine_broken" in response.text
    assert "reset" not in response.text


@pytest.mark.parametrize("attempts", [1, 2])
async def test_with_it_the_answer_begins_anew_after_a_reset(
    served: Served, worker: ScriptedWorker, attempts: int
) -> None:
    asking = await broken_off(served, worker, {"X-Headway-Retry": "reset"})
    for _ in range(attempts - 1):
        await worker.consumer.release(await worker.claim(), Return("error", error=ERROR))
    lease = await worker.claim()
    await worker.stream(lease, "a whole ", "answer")
    before, reset, after = (await asking).text.partition("event: reset\n")
    assert reset
    assert "half an " in before
    assert orjson.loads(after.split("\n")[0].removeprefix("data: ")) == {"attempt": lease.token}
    said = [line for line in after.split("\n") if '"content"' in line]
    assert len(said) == 2
    assert after.rstrip().endswith("data: [DONE]")
    assert "half an" not in after


async def test_another_wish_is_refused(served: Served) -> None:
    response = await served.http.post(CHAT, json=chat(), headers={"X-Headway-Retry": "always"})
    assert response.status_code == 400
