"""A worker of a small pool and one of a large, and engines that answer as a test says."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import orjson

from broker import fleet
from broker.heirs import Plan
from broker.job import JobView, heir_id, new_job_id
from tests.conditions import wait_until
from tests.workers.conftest import Maker, Rig
from tests.workers.scripted import ScriptedEngine, payload
from workers.engine import Delta, EngineCall, Final, Usage

Script = Callable[[EngineCall], AsyncGenerator[Delta | Final, None]]
USED = Usage(5, 3, 0)
JSON_ASKED = b'{"messages":[],"response_format":{"type":"json_object"}}'


def whole(text: str | None, *, finish: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return orjson.dumps({"object": "chat.completion", "choices": [choice]})


def says(text: str | None, *, finish: str = "stop") -> Script:
    """The same answer to everybody, in one piece or streamed by words."""

    async def script(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        if not call.stream:
            yield Final(whole(text, finish=finish), USED, finish)
            return
        for word in (text or "").split(" "):
            yield Delta(payload(word + " "), 1)
        yield Delta(payload("", finish=finish), 1)
        yield Final(b"", USED, finish)

    return script


def sure(*logprobs: float, text: str = "yes") -> Script:
    """A streamed answer with one token for each of `logprobs`."""

    async def script(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        assert call.stream, "a cascade's verdict needs a stream"
        assert call.body["logprobs"] is True
        for logprob in logprobs:
            content = [{"token": text, "logprob": logprob, "top_logprobs": []}]
            choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": content}}
            yield Delta(orjson.dumps({"object": "chat.completion.chunk", "choices": [choice]}), 1)
        yield Final(b"", USED, "stop")

    return script


def fails(error: Exception) -> Script:
    async def script(_: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        raise error
        yield

    return script


class Pair:
    """A worker of the small pool and one of the large."""

    def __init__(self, small: Rig, large: Rig) -> None:
        self.small = small
        self.large = large

    async def submit(self, *, plan: Plan | None = None, **changes: object) -> str:
        job_id = new_job_id("small")
        changes = {"stream": False, **changes}
        return await self.small.submit(
            job_id=job_id, heir=heir_id(job_id, "large"), plan=str(plan or Plan()), **changes
        )

    async def ended(self, job_id: str) -> JobView:
        return await self.small.ended(job_id)


Starts = Callable[[Script], Awaitable[Pair]]


def text_of(job: JobView) -> str:
    assert job.result is not None
    return str(orjson.loads(job.result)["choices"][0]["message"]["content"]).strip()


async def start_pair(worker: Maker, script: Script) -> Pair:
    """The small one's engine answers by `script`. Returns when the large pool is known to be served."""
    large = await worker(ScriptedEngine(says("from the large one")), queues=("large",))

    async def is_known() -> bool:
        return bool((await fleet.look(large.pipe, "large")).workers)

    await wait_until(is_known, what="the large pool is known to be served")
    return Pair(await worker(ScriptedEngine(script)), large)
