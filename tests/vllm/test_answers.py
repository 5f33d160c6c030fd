"""What a caller gets from a real vLLM through Headway."""

from typing import Any

import openai
import pytest

from tests.vllm.conftest import SLOTS, Front

MESSAGES = [{"role": "user", "content": "Name three rivers."}]
ASK = {"model": "v", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}


def test_whole_answer_and_stream_are_the_same_text(sdk: Any) -> None:
    whole = sdk.chat.completions.create(**ASK)
    chunks = list(sdk.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 10
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"


def test_stream_has_no_usage_unless_it_is_asked_for(sdk: Any) -> None:
    chunks = list(sdk.chat.completions.create(**ASK, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_completions(sdk: Any) -> None:
    asked = {"model": "vllm-model", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    whole = sdk.completions.create(**asked)
    parts = list(sdk.completions.create(**asked, stream=True))
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text != ""


def test_two_choices_of_one_request(sdk: Any) -> None:
    answer = sdk.chat.completions.create(**ASK | {"temperature": 1.0}, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_embeddings_of_a_model_that_generates_are_refused(sdk: Any) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        sdk.embeddings.create(model="v", input="text")
    assert caught.value.status_code == 404


@pytest.mark.parametrize(
    "changes",
    [{"messages": [{"role": "user", "content": "word " * 9000}]}, {"max_tokens": 9000}, {"temperature": -1}],
)
def test_what_vllm_refuses_is_the_callers_fault_in_its_words(sdk: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(**ASK | changes)
    assert str(caught.value.message)


def test_server_without_a_dialect_is_found_out_to_be_vllm(front: Front, sdk: Any) -> None:
    assert front.worker("found")["engine"].startswith("vllm at ")
    assert sdk.chat.completions.create(**ASK | {"model": "found"}).choices[0].message.content


def test_worker_says_the_kv_size_that_vllm_reports(front: Front) -> None:
    """364 blocks of 128 tokens are what 1 GiB holds of this model: 30 layers x 3 heads x 64 x 2 (K, V) x 2 bytes a token."""
    worker = front.worker()
    assert worker["slots"] == SLOTS
    assert worker["kv_total_tokens"] == 364 * 128 <= 2**30 // (30 * 3 * 64 * 2 * 2)
