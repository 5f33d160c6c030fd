"""The openai SDK and plain HTTP against the real engine through the whole of Headway."""

import json
from typing import Any

import openai
import pytest

from tests.e2e.stack import Stack

MESSAGES = [{"role": "user", "content": "Say hello."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.parametrize("model", ["small", "large"])
def test_whole_answer_with_usage_and_headers(sdk: Any, model: str) -> None:
    raw = sdk.chat.completions.with_raw_response.create(
        model=model,
        messages=MESSAGES,
        max_tokens=8,
    )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8
    assert raw.headers["x-headway-pool"] == model
    assert raw.headers["x-headway-job"].endswith(f".{model}")
    assert float(raw.headers["x-headway-queue-ms"]) >= 0
    assert float(raw.headers["x-headway-predicted-ms"]) > 0


def test_stream_gives_the_text_of_the_whole_answer(sdk: Any) -> None:
    asked = {"model": "small", "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "seed": 1}
    whole = sdk.chat.completions.create(**asked)
    chunks = list(sdk.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert all(chunk.usage is None for chunk in chunks), "usage comes only to who asked for it"
    assert all(chunk.choices for chunk in chunks)


def test_stream_usage_comes_when_asked_for(sdk: Any) -> None:
    stream = sdk.chat.completions.create(
        model="small",
        messages=MESSAGES,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    last = list(stream)[-1]
    assert last.usage is not None
    assert last.usage.completion_tokens == 5
    assert last.choices == []


def test_completions_stream_and_whole(sdk: Any) -> None:
    whole = sdk.completions.create(model="small", prompt="Once upon a time", max_tokens=6, temperature=0)
    parts = sdk.completions.create(
        model="small", prompt="Once upon a time", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text


def test_response_format_tools_logprobs_and_unknown_fields_reach_the_engine(sdk: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = sdk.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": "Give me a number as JSON."}],
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "number", "schema": schema}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content or "")["n"], int)
    answer = sdk.chat.completions.create(
        model="small",
        messages=MESSAGES,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
        extra_body={"top_k": 1, "cache_prompt": True},
    )
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or []) == 3
    plain, shown = (
        sdk.chat.completions.create(model="small", messages=MESSAGES, max_tokens=2, **tools)
        for tools in ({}, {"tools": [TOOL], "tool_choice": "auto"})
    )
    assert shown.usage.prompt_tokens > plain.usage.prompt_tokens + 30, "the model is shown the tool"


def test_n_choices(sdk: Any) -> None:
    answer = sdk.chat.completions.create(model="small", messages=MESSAGES, max_tokens=4, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_models_say_that_they_are_the_embedded_one(sdk: Any, stack: Stack) -> None:
    models = {model.id: model for model in sdk.models.list()}
    assert set(models) == {"small", "large", "auto"}
    assert "SmolLM2" in json.dumps(models["small"].model_dump())
    with stack.http() as client:
        assert "SmolLM2" in client.get("/").text


def test_unknown_model_is_404_and_names_the_models(sdk: Any) -> None:
    with pytest.raises(openai.NotFoundError, match=r"small") as caught:
        sdk.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert caught.value.code == "model_not_found"


def test_too_long_a_prompt_is_the_callers_fault_in_the_engines_words(sdk: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        sdk.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "word " * 60_000}], max_tokens=4
        )
    answer = sdk.chat.completions.create(model="small", messages=MESSAGES, max_tokens=2)
    assert answer.choices


def test_embeddings_of_the_embedded_model(sdk: Any) -> None:
    answer = sdk.embeddings.create(model="small", input=["hello", "good-bye"], encoding_format="float")
    assert [item.index for item in answer.data] == [0, 1]
    assert len(answer.data[0].embedding) == 576, "SmolLM2-135M's hidden size"
