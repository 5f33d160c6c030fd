"""Chunks put together equal the whole answer of the same request (shapes: OpenAI API reference)."""

import orjson
import pytest

from workers.assemble import Assembler
from workers.engine import EngineBroken, Usage


def chunk(choice: dict[str, object], **top: object) -> bytes:
    return orjson.dumps(
        {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]} | top
    )


def test_content_of_each_choice_is_joined_in_order() -> None:
    assembler = Assembler()
    for index, text in ((0, "Hel"), (1, "By"), (0, "lo"), (1, "e")):
        assembler.feed(chunk({"index": index, "delta": {"content": text}, "finish_reason": None}))
    assembler.feed(chunk({"index": 0, "delta": {}, "finish_reason": "stop"}))
    whole = orjson.loads(assembler.whole(None))
    assert [c["message"]["content"] for c in whole["choices"]] == ["Hello", "Bye"]
    assert [c["finish_reason"] for c in whole["choices"]] == ["stop", None]
    assert (whole["object"], whole["id"], whole["created"]) == ("chat.completion", "c1", 7)


@pytest.mark.parametrize("index", [10**18, -1, True, "0"])
def test_a_tool_call_that_is_numbered_as_nobody_can_breaks_the_answer(index: object) -> None:
    with pytest.raises(EngineBroken):
        Assembler().feed(chunk({"index": 0, "delta": {"tool_calls": [{"index": index, "id": "t"}]}}))


def test_tool_calls_are_joined_by_index() -> None:
    assembler = Assembler()
    parts: list[dict[str, object]] = [
        {"index": 0, "id": "t0", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 1, "id": "t1", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    for part in parts:
        assembler.feed(chunk({"index": 0, "delta": {"tool_calls": [part]}}))
    calls = orjson.loads(assembler.whole(None))["choices"][0]["message"]["tool_calls"]
    assert calls == [
        {"id": "t0", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
        {"id": "t1", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
    ]


def test_logprobs_of_chat_and_of_completions_grow() -> None:
    chat = Assembler()
    for token in ("a", "b"):
        chat.feed(
            chunk({"index": 0, "delta": {"content": token}, "logprobs": {"content": [{"token": token}]}})
        )
    assert orjson.loads(chat.whole(None))["choices"][0]["logprobs"] == {
        "content": [{"token": "a"}, {"token": "b"}]
    }
    text = Assembler()
    for token in ("a", "b"):
        text.feed(
            chunk({"index": 0, "text": token, "logprobs": {"tokens": [token]}}, object="text_completion")
        )
    whole = orjson.loads(text.whole(None))
    assert (whole["object"], whole["choices"][0]["text"]) == ("text_completion", "ab")
    assert whole["choices"][0]["logprobs"] == {"tokens": ["a", "b"]}


def test_usage_is_the_engines_own_where_the_chunks_carry_it() -> None:
    assembler = Assembler()
    assembler.feed(
        chunk({"index": 0, "delta": {"content": "x"}})
        + b"\n"
        + orjson.dumps({"choices": [], "usage": {"total_tokens": 9}})
    )
    assert orjson.loads(assembler.whole(Usage(1, 1, 0)))["usage"] == {"total_tokens": 9}


def test_unknown_fields_are_kept_and_reasoning_is_joined() -> None:
    assembler = Assembler()
    assembler.feed(
        chunk({"index": 0, "delta": {"role": "assistant", "reasoning_content": "hm"}}, system_fingerprint="f")
    )
    assembler.feed(chunk({"index": 0, "delta": {"reasoning_content": "m"}, "stop_reason": 3}))
    whole = orjson.loads(assembler.whole(None))
    assert whole["system_fingerprint"] == "f"
    assert whole["choices"][0]["message"]["reasoning_content"] == "hmm"
    assert whole["choices"][0]["stop_reason"] == 3
