"""What is read out of a request: the same names for every endpoint, nothing raised for any shape, bounded work."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.features import FEATURES, INDEX, Reader, extract
from predictor.history import NO_HISTORY, History, Past
from predictor.lexicon import Lexicon
from predictor.prompt_types import PromptType

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["messages", "prompt", "input", "tools", "tool_choice", "response_format", "max_tokens", "n", "functions"]
)


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    """Turns of user and assistant, from the user on."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **more}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}


def test_names_are_unique_and_the_vector_has_their_order() -> None:
    assert len(set(FEATURES)) == len(FEATURES)
    found = extract(chat("hello", max_tokens=77))
    vector = found.vector()
    assert vector.typecode == "d"
    assert len(vector) == len(FEATURES)
    assert vector[INDEX["limit_tokens"]] == found["limit_tokens"] == 77


@given(st.dictionaries(NAMES, ANY, max_size=5))
def test_no_document_is_too_odd(document: dict[str, Any]) -> None:
    found = extract(document)
    assert found.prompt_tokens >= 1
    assert found.choices >= 1
    assert all(isinstance(value, int | float) for value in found.values)


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "text", "type"]), ANY)))
def test_no_message_is_too_odd(messages: list[dict[str, Any]]) -> None:
    assert len(extract({"messages": messages}).values) == len(FEATURES)


def test_answers_of_the_conversation_are_its_history() -> None:
    found = extract(chat("first question", "word " * 100, "second question", "word " * 300, "third"))
    assert found["answers"] == 2
    assert found["last_answer_tokens"] == pytest.approx(3 * 100, rel=0.25)
    assert found["mean_answer_tokens"] == pytest.approx(2 * 100, rel=0.25)
    assert extract(chat("first question"))["last_answer_tokens"] == -1


def test_what_is_not_known_of_the_past_differs_from_short_answers() -> None:
    unknown, known = extract(chat("x")), extract(chat("x"), Past(History(3, 2.0, 6.0, 9.0), History(7, 1.5)))
    names = (
        "template_count",
        "template_mean_log",
        "template_q50",
        "template_q90",
        "pool_count",
        "pool_mean_log",
    )
    assert [unknown[name] for name in names] == [0, -1, -1, -1, 0, -1]
    assert [known[name] for name in names] == [3, 2, 6, 9, 7, 1.5]
    assert extract(chat("x"), History(3, 2.0, 6.0, 9.0))["template_q50"] == 6


def test_history_of_outputs_has_their_quantiles() -> None:
    found = History.of(float(n) for n in range(101))
    assert (found.count, found.q50, found.q90) == (101, 50, 90)
    assert History.of([]) == NO_HISTORY


def test_tools_count_as_prompt_and_fit_the_question_or_not() -> None:
    fits = extract(chat("what is the weather in Paris?", tools=[tool("get_weather"), tool("book_flight")]))
    other = extract(chat("what is the weather in Paris?", tools=[tool("transpose_matrix")]))
    none = extract(chat("what is the weather in Paris?"))
    assert fits["tools"] == 2
    assert fits["tool_overlap"] == 1.0
    assert other["tool_overlap"] == 0.0
    assert fits["prompt_tokens"] > none["prompt_tokens"] + 20
    assert fits["tool_tokens"] > 0 == none["tool_tokens"]


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("auto", 0),
        ("none", -1),
        ("required", 1),
        ({"type": "function", "function": {"name": "f"}}, 1),
        (None, 0),
    ],
)
def test_tool_choice_is_a_feature(choice: object, forced: int) -> None:
    assert extract(chat("x", tools=[tool("f")], tool_choice=choice))["tool_forced"] == forced


def test_completion_limits_and_choices_are_read_as_the_engines_read_them() -> None:
    found = extract(chat("x", max_tokens=50, max_completion_tokens=20, n=3))
    assert (found.limit_tokens, found.choices) == (20, 3)
    assert (extract(chat("x", n=True)).choices, extract(chat("x", max_tokens=-1)).limit_tokens) == (1, 0)


def test_prompts_of_every_endpoint_are_read() -> None:
    text = "word " * 400
    for document in ({"prompt": text}, {"input": [text]}, {"prompt": [text]}, chat(text)):
        assert extract(document).prompt_tokens == pytest.approx(400, rel=0.1)
    assert extract({"prompt": list(range(321))}).prompt_tokens == pytest.approx(321, abs=5)


def test_an_image_costs_tokens_but_its_base64_does_not() -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}},
    ]
    found = extract({"messages": [{"role": "user", "content": parts}]})
    assert 500 < found.prompt_tokens < 1500


def test_words_are_weighed_by_the_lexicon() -> None:
    lexicon = Lexicon(length={b"essay": 1.0, b"^write": 0.5, b"an essay": 0.25}, tool={b"weather": 2.0})
    found = Reader(lexicon=lexicon).read(chat("Write an essay, please"))
    assert found["words_length"] == 1.75
    assert found["words_tool"] == 0.0
    assert Reader(lexicon=lexicon).read(chat("Weather?"))["words_tool"] == 2.0


def test_json_and_type_are_seen() -> None:
    found = extract(chat("Extract all names", response_format={"type": "json_object"}))
    assert found["json_asked"] == 1
    assert found.prompt_type is PromptType.EXTRACTION
    assert found["type_extraction"] == 1


def test_nothing_of_the_prompt_is_shown_by_repr_or_template() -> None:
    found = extract(chat("secretword"))
    assert "secretword" not in repr(found)
    assert "secretword" not in json.dumps(list(found.values)) + found.template
