"""What is wrong with an answer, and how sure an engine was of it."""

import math

import pytest

from workers import verdict
from workers.verdict import Confidence, flaw, loops

JSON = {"response_format": {"type": "json_object"}}
LINES = "| --- | --- |\n" * 60


def answer(text: object, *, finish: str = "stop", **message: object) -> dict[str, object]:
    return {"choices": [{"message": {"content": text, **message}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (answer("Paris."), None),
        (answer(""), "empty_answer"),
        (answer(None), "empty_answer"),
        (answer(None, tool_calls=[{"id": "1"}]), None),
        (answer(None, refusal="I will not"), None),
        (answer("cut", finish="length"), "length"),
        ({"choices": []}, "empty_answer"),
        ({}, "empty_answer"),
        ({"choices": [{"text": "a completion", "finish_reason": "stop"}]}, None),
    ],
)
def test_flaws_of_an_answer(given: dict[str, object], why: str | None) -> None:
    assert flaw({}, given) == why


@pytest.mark.parametrize("name", verdict.LIMITS)
def test_who_sets_a_limit_has_asked_for_the_cut(name: str) -> None:
    assert flaw({name: 5}, answer("cut", finish="length")) is None
    assert flaw({name: 5} | JSON, answer('{"a": ', finish="length")) is None
    assert flaw({name: 1}, answer(" ", finish="length")) is None


def test_text_in_parts_is_text() -> None:
    parts = [{"type": "text", "text": "an "}, {"type": "text", "text": "answer"}, {"type": "image"}, None]
    assert flaw({}, answer(parts)) is None
    assert flaw({}, answer([{"type": "text", "text": " "}])) == "empty_answer"


def test_one_bad_choice_of_several_is_enough() -> None:
    two = {"choices": [*answer("good")["choices"], *answer(" ")["choices"]]}  # type: ignore[misc]
    assert flaw({"n": 2}, two) == "empty_answer"


@pytest.mark.parametrize(
    ("text", "why"), [('{"a":1}', None), ("[1]", None), ("```json\n{}\n```", "invalid_json")]
)
@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_json_that_was_asked_for_has_to_be_json(text: str, why: str | None, kind: str) -> None:
    assert flaw({"response_format": {"type": kind}}, answer(text)) == why
    assert flaw({"response_format": {"type": "text"}}, answer(text)) is None


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        ("I am sorry, I cannot do that. " * 20, True),
        ("Intro.\n" + "and then he said that " * 30, True),
        ("ha " * 200, True),
        ("-" * 500, False),
        (" " * 500, False),
        ("no no no", False),
        ("".join(f"{n}. item number {n}\n" for n in range(100)), False),
        ("once " * 10, False),
        ("x" * 100 + "The end of a long and winding story, told once. " * 3, False),
    ],
)
def test_the_same_passage_over_and_over_is_a_loop(text: str, is_loop: bool) -> None:
    assert loops(text) is is_loop


def chat(*tokens: tuple[float, ...]) -> dict[str, object]:
    """Each token: its log-probability, then those of the candidates."""
    content = [{"logprob": own, "top_logprobs": [{"logprob": x} for x in top]} for own, *top in tokens]
    return {"logprobs": {"content": content}}


def test_confidence_is_the_geometric_mean_of_the_first_tokens() -> None:
    confidence = Confidence()
    confidence.feed(chat((math.log(0.9),), (math.log(0.4),), (math.log(0.001),)))
    assert confidence.of_first(2) == pytest.approx(0.6)
    assert confidence.of_first(1) == pytest.approx(0.9)


def test_a_close_second_lowers_it() -> None:
    confidence = Confidence()
    confidence.feed(chat((math.log(0.5), math.log(0.5), math.log(0.5))))
    assert confidence.of_first(8) == pytest.approx(0.5)
    sure = Confidence()
    sure.feed(chat((math.log(0.98), math.log(0.98), math.log(0.01))))
    assert sure.of_first(8) == pytest.approx(0.98, abs=0.01)


def test_completions_say_it_in_parallel_lists() -> None:
    confidence = Confidence()
    tops = [{"a": math.log(0.8), "b": math.log(0.1)}]
    confidence.feed({"logprobs": {"token_logprobs": [None, math.log(0.8)], "top_logprobs": [None, *tops]}})
    assert confidence.of_first(8) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"logprobs": None},
        {"logprobs": {"content": None}},
        {"logprobs": {"content": ["x", {"logprob": None}]}},
    ],
)
def test_an_engine_that_says_nothing_has_no_confidence(choice: dict[str, object]) -> None:
    confidence = Confidence()
    confidence.feed(choice)
    assert confidence.of_first(8) is None
