"""Prompt types and asked-for lengths, English and Chinese."""

import pytest

from predictor.asked_length import asked
from predictor.prompt_types import TYPES, PromptType, kinds, named, phrases, window, words


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Translate this into German: good morning", PromptType.TRANSLATION),
        ("把这句话翻译成英文", PromptType.TRANSLATION),
        ("Summarize the article below.", PromptType.SUMMARY),
        ("请总结下面的文章", PromptType.SUMMARY),
        ("Rewrite this sentence politely", PromptType.REWRITE),
        ("Extract the phone numbers from this text", PromptType.EXTRACTION),
        ("从下面的文本中提取人名", PromptType.EXTRACTION),
        ("Write a Python function that reverses a list", PromptType.CODE),
        ("用代码实现快速排序算法", PromptType.CODE),
        ("Calculate 12 % of 340", PromptType.MATHS),
        ("Tell me a story about a dragon", PromptType.CREATIVE),
        ("写一首关于秋天的诗", PromptType.CREATIVE),
        ("Explain photosynthesis", PromptType.EXPLAIN),
        ("Where was Mozart born?", PromptType.FACT),
        ("谁发明了电话？", PromptType.FACT),
        ("Thanks!", PromptType.CHAT),
        ("", PromptType.CHAT),
    ],
)
def test_type_follows_from_the_words(text: str, kind: PromptType) -> None:
    part = window(text)
    assert named(kinds(part, frozenset(words(part)))) is kind


def test_a_prompt_can_be_of_several_types() -> None:
    marks = dict(
        zip(TYPES, kinds("translate and explain", frozenset([b"translate", b"explain"])), strict=True)
    )
    assert {kind for kind, mark in marks.items() if mark} == {PromptType.TRANSLATION, PromptType.EXPLAIN}


def test_window_is_both_ends_of_a_long_prompt() -> None:
    part = window("first " + "x" * 100_000 + " last")
    assert len(part) < 1000
    assert part.startswith("first ")
    assert part.endswith(" last")


def test_phrases_are_neighbours_and_the_beginning() -> None:
    assert phrases([b"write", b"an", b"essay"]) == [b"^write", b"write an", b"an essay"]
    assert phrases([]) == []


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Describe it in 200 words.", 266),
        ("a 500-word essay", 665),
        ("between 100 and 200 words please", 266),
        ("100-150 words", 199.5),
        ("Answer in one sentence", 25),
        ("in three short bullet points", 75),
        ("写一篇不少于800字的作文", 640),
        ("用一句话回答", 22),
        ("列出五个例子", 125),
        ("写一个故事", 0),
        ("What do these words mean?", 0),
        ("hello", 0),
    ],
)
def test_asked_length_is_read(text: str, tokens: float) -> None:
    spoken = words(text)
    assert asked(text, spoken, found=frozenset(spoken)).tokens == pytest.approx(tokens)


def test_brief_and_detailed_are_told_apart() -> None:
    for text, brief, detailed in (
        ("Be concise.", 1, 0),
        ("a comprehensive guide", 0, 1),
        ("请简短回答", 1, 0),
        ("请详细说明", 0, 1),
    ):
        spoken = words(text)
        found = asked(text, spoken, found=frozenset(spoken))
        assert (found.brief, found.detailed) == (brief, detailed)
