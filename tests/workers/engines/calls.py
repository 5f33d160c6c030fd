"""Short ways to ask an engine."""

from contextlib import aclosing
from typing import Any

import orjson

from workers.engine import CHAT, COMPLETIONS, EMBEDDINGS, Delta, Engine, EngineCall, Final


def chat(
    content: str = "Tell me a story.", *, stream: bool = True, job_id: str = "job", **fields: Any
) -> EngineCall:
    body = {"model": "any", "messages": [{"role": "user", "content": content}], "max_tokens": 8} | fields
    return EngineCall(job_id, CHAT, body, stream)


def completion(prompt: Any = "Once", *, stream: bool = True, **fields: Any) -> EngineCall:
    return EngineCall("job", COMPLETIONS, {"prompt": prompt, "max_tokens": 4} | fields, stream)


def embedding(text: str | list[str]) -> EngineCall:
    return EngineCall("job", EMBEDDINGS, {"input": text}, stream=False)


async def collect(engine: Engine, call: EngineCall) -> tuple[list[dict[str, Any]], Final]:
    """The stream's payloads, parsed, and the end. Every delta counts right."""
    payloads: list[dict[str, Any]] = []
    async with aclosing(engine.generate(call)) as items:
        async for item in items:
            if isinstance(item, Final):
                return payloads, item
            assert isinstance(item, Delta)
            lines = item.data.split(b"\n")
            assert len(lines) == item.count
            payloads += [orjson.loads(line) for line in lines]
    raise AssertionError("no Final")


async def whole(engine: Engine, call: EngineCall) -> dict[str, Any]:
    """The answer of a call that is no stream."""
    payloads, final = await collect(engine, call)
    assert payloads == []
    answer = orjson.loads(final.body)
    assert isinstance(answer, dict)
    return answer


def text_of(payloads: list[dict[str, Any]]) -> str:
    choices = [choice for payload in payloads for choice in payload["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
