"""Counts that cannot be are counted again, and marked."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engines import recorded
from tests.workers.engines.calls import chat, collect, completion, embedding
from tests.workers.engines.conftest import Serve
from tests.workers.engines.script import Script
from tests.workers.engines.test_sse import chunk, wire
from workers.engine import EngineCall, Usage
from workers.engines.usage import MOST_TOKENS, checked, tokens_of_answer, tokens_of_stream

CALL = chat("x" * 400, max_tokens=8)  # 100 tokens of text and 4 of the template


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (Usage(5, 3, 2), Usage(5, 3, 2)),
        (Usage(5, 8, 5), Usage(5, 8, 5)),
        (None, Usage(104, 6, 0, recounted=True)),
        (Usage(0, 3, 0), Usage(104, 3, 0, recounted=True)),
        (Usage(-1, 3, 0), Usage(104, 3, 0, recounted=True)),
        (Usage(5, 0, 0), Usage(5, 6, 0, recounted=True)),
        (Usage(5, -3, 0), Usage(5, 6, 0, recounted=True)),
        (Usage(5, 9, 0), Usage(5, 6, 0, recounted=True)),
        (Usage(5, 10**9, 0), Usage(5, 6, 0, recounted=True)),
        (Usage(2**64 - 1, 3, 0), Usage(104, 3, 0, recounted=True)),
        (Usage(5, 3, 6), Usage(5, 3, 5, recounted=True)),
        (Usage(5, 3, -1), Usage(5, 3, 0, recounted=True)),
    ],
)
def test_a_count_that_cannot_be_is_replaced(given: Usage | None, right: Usage) -> None:
    assert checked(given, CALL, written=6) == right


def test_a_completion_that_no_engine_can_write_is_replaced_also_where_no_limit_was_named() -> None:
    assert checked(Usage(5, MOST_TOKENS + 1, 0), chat(), written=6) == Usage(5, 6, 0, recounted=True)
    assert checked(Usage(5, 2**64, 0), embedding("x"), written=0) == Usage(5, 0, 0, recounted=True)


@pytest.mark.parametrize(
    "given", ["true", "18446744073709551615", "-9223372036854775808", '"5"', "5.5", "1e300"]
)
async def test_a_stream_whose_prompt_count_is_no_count_gets_through(serve: Serve, given: str) -> None:
    """Told for each of two choices: the sum goes to the caller, who wants it."""
    usage = b'{"choices":[],"usage":{"prompt_tokens":%s,"completion_tokens":%s}}' % (
        given.encode(),
        given.encode(),
    )
    script = Script(wire(chunk("a"), chunk("b"), chunk("c", finish="stop"), usage, usage, b"[DONE]"))
    _, final = await collect(
        await serve(script.answer), chat("x" * 400, stream_options={"include_usage": True})
    )
    assert final.usage == Usage(104, 2, 0, recounted=True)


def test_an_answer_without_text_may_have_no_tokens() -> None:
    assert checked(Usage(5, 0, 0), CALL, written=0) == Usage(5, 0, 0)


@pytest.mark.parametrize(
    "call",
    [
        chat(max_tokens=None),
        chat(max_tokens=8, n=2),
        chat(max_completion_tokens=16),
        completion(max_tokens=8, prompt=["a", "b"]),
        completion(max_tokens=8, best_of=2),
    ],
)
def test_the_limit_is_that_of_all_choices_of_all_prompts(call: EngineCall) -> None:
    assert checked(Usage(5, 16, 0), call, written=16) == Usage(5, 16, 0)


def test_token_ids_are_one_prompt() -> None:
    call = completion(max_tokens=4, prompt=[1, 2, 3])
    assert checked(Usage(3, 9, 0), call, written=4).recounted


def test_embeddings_have_no_completion() -> None:
    assert checked(Usage(3, 0, 0), embedding("x"), written=0) == Usage(3, 0, 0)
    assert checked(None, embedding("x" * 40), written=0) == Usage(10, 0, 0, recounted=True)


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"choices": [{"message": {"content": "x" * 40}}]}, 10),
        ({"choices": [{"text": "x"}, {"text": "x" * 40}]}, 11),
        ({"choices": [{"message": {"content": None, "reasoning_content": "x" * 40}}]}, 10),
        (
            {"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": "x" * 40}}]}}]},
            11,
        ),
        ({"choices": [{"message": {"content": ""}}]}, 0),
        ({"choices": ["x", None, {"message": 3}, {"message": {"tool_calls": [None, {}]}}]}, 0),
        ({"choices": None}, 0),
        ({}, 0),
    ],
)
def test_tokens_of_an_answer_are_estimated_from_its_texts(answer: dict[str, Any], tokens: int) -> None:
    assert tokens_of_answer(answer) == tokens


@pytest.mark.parametrize(("payloads", "tokens"), [(0, 0), (1, 0), (6, 4)])
def test_a_stream_has_about_one_token_a_payload(payloads: int, tokens: int) -> None:
    assert tokens_of_stream(payloads) == tokens


@pytest.mark.parametrize("name", ["vllm/chat_stream.txt", "llamacpp/chat_stream.txt"])
async def test_recorded_streams_are_counted_as_their_servers_counted(serve: Serve, name: str) -> None:
    """The estimate is what comes of the same stream without its usage."""
    stream = recorded.raw(name)
    events = [event for event in stream.split(b"\n\n") if b'"usage":{' not in event]
    counts = []
    for sent in (stream, b"\n\n".join(events)):
        _, final = await collect(await serve(Script(sent).answer), chat(max_tokens=12))
        assert final.usage is not None
        counts.append(final.usage)
    assert (counts[0].recounted, counts[1].recounted) == (False, True)
    assert abs(counts[0].completion_tokens - counts[1].completion_tokens) <= 1


@pytest.mark.parametrize(
    ("name", "cached"),
    [
        ("vllm/chat_long_again.json", 1664),
        ("vllm/chat_long_again_no_details.json", 0),
        ("vllm/chat_long_salted.json", 0),
        ("llamacpp/chat.json", 30),
    ],
)
async def test_recorded_answers_tell_what_was_cached(serve: Serve, name: str, cached: int) -> None:
    _, final = await collect(
        await serve(Script(recorded.raw(name)).answer), chat(stream=False, max_tokens=12)
    )
    assert final.usage is not None
    assert final.usage.cached_tokens == cached
    assert not final.usage.recounted


async def test_llamacpps_timings_tell_what_was_cached_where_the_usage_does_not(serve: Serve) -> None:
    end = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1},"timings":{"cache_n":7}}'
    script = Script(wire(chunk("a"), chunk("", finish="stop"), end, b"[DONE]"))
    _, final = await collect(await serve(script.answer, dialect="llamacpp"), chat())
    assert final.usage == Usage(9, 1, 7)


COUNTS = st.integers(-(10**12), 10**12)


@given(usage=st.none() | st.builds(Usage, COUNTS, COUNTS, COUNTS), written=st.integers(0, 10**6))
def test_what_comes_out_can_be(usage: Usage | None, written: int) -> None:
    right = checked(usage, CALL, written=written)
    assert right.prompt_tokens > 0
    assert 0 <= right.cached_tokens <= right.prompt_tokens
    assert 0 <= right.completion_tokens <= 8
    assert not checked(replace(right, recounted=False), CALL, written=written).recounted
