"""Tools and the embedded engine: shown to the model, called by it, and called because the caller insists."""

from typing import Any

import orjson
import pytest

from tests.workers.engines.calls import chat, collect, whole
from workers.engine import EngineRejected
from workers.engines.llamacpp import LlamaCppEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def test_tools_are_shown_to_the_model(llamacpp: LlamaCppEngine) -> None:
    _, plain = await collect(llamacpp, chat("Weather in Rome?"))
    _, tools = await collect(llamacpp, chat("Weather in Rome?", tools=[TOOL]))
    assert plain.usage is not None
    assert tools.usage is not None
    assert tools.usage.prompt_tokens > plain.usage.prompt_tokens + 50


def called(city: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": orjson.dumps({"city": city}).decode()}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": city, "type": "function", "function": function}],
    }


async def test_a_call_of_a_tool_is_parsed_out_of_the_text(llamacpp: LlamaCppEngine) -> None:
    """So small a model calls a tool after it has seen how it is done; with temperature 0 it does so every time."""
    messages = []
    for city in ("Rome", "Paris"):
        messages += [{"role": "user", "content": f"Weather in {city}?"}, called(city)]
    messages.append({"role": "user", "content": "Weather in Oslo?"})
    fields: dict[str, Any] = {"messages": messages, "tools": [TOOL], "temperature": 0, "max_tokens": 60}
    answer = await whole(llamacpp, chat(stream=False, **fields))
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "get_weather",
        "arguments": '{"city": "Oslo"}',
    }
    payloads, final = await collect(llamacpp, chat(**fields))
    assert final.finish_reason == "tool_calls"
    deltas = [choice["delta"] for payload in payloads for choice in payload["choices"]]
    pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert "".join(piece.get("arguments", "") for piece in pieces) == '{"city": "Oslo"}'


ROLL = {"type": "function", "function": {"name": "roll_dice"}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "roll_dice"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
        ({"type": "function", "function": {"name": "roll_dice"}}, {"roll_dice"}),
    ],
)
async def test_a_call_that_is_insisted_on_is_made(
    llamacpp: LlamaCppEngine, choice: object, names: set[str], stream: bool
) -> None:
    fields: dict[str, Any] = {"tools": [TOOL, ROLL], "tool_choice": choice, "max_tokens": 200, "seed": 1}
    call = chat("Tell me a joke.", stream=stream, temperature=0, **fields)
    payloads, final = await collect(llamacpp, call)
    assert final.finish_reason == "tool_calls"
    assert final.usage is not None
    assert final.usage.completion_tokens > 5
    if stream:
        made = payloads[0]["choices"][0]["delta"]["tool_calls"][0]
        assert payloads[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert all("usage" not in payload for payload in payloads)
    else:
        message = orjson.loads(final.body)["choices"][0]["message"]
        made = message["tool_calls"][0]
        assert message["content"] is None
    assert made["function"]["name"] in names
    arguments = orjson.loads(made["function"]["arguments"])
    assert isinstance(arguments, dict)
    assert made["function"]["name"] != "get_weather" or isinstance(arguments["city"], str)


async def test_a_call_that_is_insisted_on_may_be_cut_off(llamacpp: LlamaCppEngine) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 3}
    answer = await whole(llamacpp, chat(stream=False, **fields))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "tool_calls" not in answer["choices"][0]["message"]


async def test_a_choice_that_is_no_tool_is_rejected(llamacpp: LlamaCppEngine) -> None:
    choice = {"type": "function", "function": {"name": "fly"}}
    with pytest.raises(EngineRejected) as caught:
        await collect(llamacpp, chat(tools=[TOOL], tool_choice=choice))
    assert caught.value.status == 400
    assert "fly" in orjson.loads(caught.value.body)["error"]["message"]
