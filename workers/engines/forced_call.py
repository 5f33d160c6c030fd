"""Calls of a tool that the caller insists on (`tool_choice` "required", or a function's name), for llama.cpp.

The embedded server offers tools to the model but lets it answer in prose whatever `tool_choice` says (measured), and takes
no grammar beside tools. It does take a JSON schema: the answer is bound to "one of these calls", and put into OpenAI's
shape here. So such an answer is not streamed token by token: its one call comes as a whole.
"""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson

from workers.engine import CHAT, Delta, Engine, EngineBroken, EngineCall, EngineRejected, Final

Functions = list[dict[str, Any]]


def forced(call: EngineCall) -> Functions | None:
    """The functions of which one has to be called; None: the model may answer as it likes. Raises EngineRejected."""
    choice, tools = call.body.get("tool_choice"), call.body.get("tools")
    named = choice.get("function") if isinstance(choice, dict) else None
    if call.endpoint != CHAT or not isinstance(tools, list) or (choice != "required" and named is None):
        return None
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    usable = [f for f in functions if isinstance(f, dict) and isinstance(f.get("name"), str)]
    if len(usable) != len(tools) or not tools:
        return None  # llama.cpp has its own words for that
    if not isinstance(named, dict):
        return usable
    found = [function for function in usable if function["name"] == named.get("name")]
    if not found:
        raise EngineRejected(400, _refusal(f"tool_choice names {named.get('name')!r}, which is not in tools"))
    return found


async def call_tool(
    engine: Engine, call: EngineCall, *, functions: Functions
) -> AsyncGenerator[Delta | Final, None]:
    """Like `Engine.generate`."""
    body = {key: value for key, value in call.body.items() if key not in ("tool_choice", "stream_options")}
    body["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": "call", "schema": {"anyOf": [_schema(function) for function in functions]}},
    }
    async with aclosing(engine.generate(replace(call, body=body, stream=False))) as items:
        async for item in items:
            if not isinstance(item, Final):
                continue
            answer = orjson.loads(item.body)
            for choice in answer["choices"]:
                _put_call(choice)
            reason = answer["choices"][0]["finish_reason"]
            if call.stream:
                chunks = _chunks(answer, with_usage=_wants_usage(call))
                yield Delta(b"\n".join(chunks), len(chunks))
                yield Final(b"", item.usage, reason)
            else:
                yield Final(orjson.dumps(answer), item.usage, reason)


def _schema(function: dict[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": parameters if isinstance(parameters, dict) and parameters else {"type": "object"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _put_call(choice: dict[str, Any]) -> None:
    """An answer that was cut off by its limit stays what it is: text, with the reason."""
    message = choice["message"]
    try:
        made = orjson.loads(message.get("content") or "")
        function = {"name": made["name"], "arguments": orjson.dumps(made["arguments"]).decode()}
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        if choice.get("finish_reason") == "length":
            return
        raise EngineBroken("the engine's call of a tool has another form than was asked for") from error
    message |= {
        "content": None,
        "tool_calls": [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}],
    }
    choice["finish_reason"] = "tool_calls"


def _chunks(answer: dict[str, Any], *, with_usage: bool) -> list[bytes]:
    """The answer as a stream would have brought it."""
    head: dict[str, Any] = {key: answer[key] for key in ("id", "created", "model") if key in answer}
    head["object"] = "chat.completion.chunk"
    parts = []
    for choice in answer["choices"]:
        delta = dict(choice["message"])
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls)]
        end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        parts += [{"index": choice["index"], "delta": delta, "finish_reason": None}, end]
    chunks = [orjson.dumps(head | {"choices": [part]}) for part in parts]
    usage = [orjson.dumps(head | {"choices": [], "usage": answer.get("usage")})] if with_usage else []
    return chunks + usage


def _wants_usage(call: EngineCall) -> bool:
    options = call.body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _refusal(message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "code": None, "param": "tool_choice"}
    return orjson.dumps({"error": error})
