"""What a request is taken to cost before anybody has learnt: counted by hand from the constants' own meaning."""

from typing import Any

import pytest

from predictor.estimator import (
    DEFAULT_OUTPUT_TOKENS,
    SimpleEstimator,
    Speed,
    output_tokens,
    prompt_tokens,
    text_tokens,
)

ENGLISH = "The quick brown fox jumps over the lazy dog. " * 10
CHINESE = "请把下面这段话翻译成英文并且保持原来的格式不变谢谢你" * 10
SCHEMA = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Reads the weather of a city for one of the next ten days, in degrees and millimetres of rain.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "day": {"type": "integer"}},
        },
    },
}


def nested(depth: int) -> list[Any]:
    """As deep as the JSON parser lets through."""
    value: list[Any] = [ENGLISH]
    for _ in range(depth):
        value = [value]
    return value


def chat(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def test_english_takes_four_to_five_characters_a_token() -> None:
    assert len(ENGLISH) / 5 <= text_tokens(ENGLISH) <= len(ENGLISH) / 4


@pytest.mark.parametrize(
    "text", [CHINESE, "日本語のテキストを要約してください。" * 9, "다음 글을 요약해 주세요." * 9]
)
def test_cjk_takes_more_than_half_a_token_a_character(text: str) -> None:
    """By the four characters a token of English it would be estimated at a third of what it takes."""
    wide = sum(ord(c) > 0x2FFF for c in text)
    assert 0.6 * wide <= text_tokens(text) <= len(text)


def test_mixed_text_is_the_sum_of_its_parts() -> None:
    assert text_tokens(ENGLISH + CHINESE) == pytest.approx(text_tokens(ENGLISH) + text_tokens(CHINESE))


def test_token_ids_count_one_each() -> None:
    assert prompt_tokens({"prompt": [1, 2, 3, 4]}) == 4
    assert prompt_tokens({"prompt": [[1, 2, 3], [4, 5]]}) == 5
    assert prompt_tokens({"input": [7] * 1000}) == 1000


def test_several_prompts_are_added_up() -> None:
    one = prompt_tokens({"prompt": ENGLISH})
    assert prompt_tokens({"prompt": [ENGLISH] * 3}) == pytest.approx(3 * one, abs=2)


def test_content_parts_count_like_the_text_they_carry() -> None:
    parts = [{"type": "text", "text": ENGLISH}, {"type": "text", "text": CHINESE}]
    assert prompt_tokens(chat(parts)) == pytest.approx(prompt_tokens(chat(ENGLISH + CHINESE)), rel=0.05)


def test_attached_image_does_not_count_as_text() -> None:
    """A megabyte of base64 would be a quarter of a million tokens; a 1024 x 1024 image takes under 2,000."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    assert prompt_tokens(chat([image])) < 2_000


def test_tool_calls_of_earlier_turns_are_part_of_the_prompt() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ENGLISH}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert prompt_tokens({"messages": [turn]}) >= text_tokens(ENGLISH)


def test_every_message_costs_its_frame() -> None:
    many = {"messages": [{"role": "user", "content": "hi"}] * 50}
    assert prompt_tokens(many) >= 50 * 4


def test_tools_are_part_of_the_prompt() -> None:
    without = prompt_tokens(chat("hi"))
    one, two = prompt_tokens(chat("hi", tools=[SCHEMA])), prompt_tokens(chat("hi", tools=[SCHEMA, SCHEMA]))
    assert one - without >= 20  # about a hundred characters of description alone
    assert two - one == pytest.approx(one - without, abs=1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": [None, 3, "x", {}, {"content": None}, {"content": [None, 4.5, {"text": 7}]}]},
        {"prompt": {"deep": [{"deeper": True}]}},
        {"max_tokens": "many", "n": "all"},
        {"max_tokens": -5, "n": -1},
        {"input": ""},
        {"prompt": nested(900)},
        {"tools": nested(900)},
    ],
)
def test_no_body_makes_it_fail(body: dict[str, Any]) -> None:
    forecast = SimpleEstimator().forecast("small", body)
    assert forecast.prompt_tokens >= 1
    assert forecast.output_tokens >= 0
    assert forecast.run_s > 0


def test_asked_for_length_is_believed() -> None:
    assert output_tokens(chat("hi", max_tokens=17)) == 17
    assert output_tokens(chat("hi", max_completion_tokens=9, max_tokens=17)) == 9
    assert output_tokens(chat("hi", max_tokens=17, n=3)) == 51
    assert output_tokens(chat("hi")) == DEFAULT_OUTPUT_TOKENS


def test_absurd_length_does_not_put_a_job_off_forever() -> None:
    assert output_tokens(chat("hi", max_tokens=10**12)) <= 2**17


def test_embeddings_have_no_output() -> None:
    assert output_tokens({"input": ENGLISH}) == 0


def test_time_is_linear_in_both_token_counts_at_the_pools_speed() -> None:
    estimator = SimpleEstimator({"large": Speed(prefill_s_per_token=0.001, decode_s_per_token=0.1)})
    body = {"prompt": [1] * 500, "max_tokens": 20}
    forecast = estimator.forecast("large", body)
    assert (forecast.prompt_tokens, forecast.output_tokens) == (500, 20)
    assert forecast.run_s == pytest.approx(0.5 + 2.0)
    plain = Speed()
    expected = 500 * plain.prefill_s_per_token + 20 * plain.decode_s_per_token
    assert estimator.forecast("small", body).run_s == pytest.approx(expected)
