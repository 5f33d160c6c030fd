"""How long an answer the prompt itself asks for: "in 200 words", "in three bullet points", "一句话", "不少于800字". Pure."""

import re
from typing import NamedTuple

# Tokens of one: an English word is 1.33 tokens; the others are what answers to such prompts run to, about.
UNIT_TOKENS = {
    b"word": 1.33,
    b"words": 1.33,
    b"token": 1.0,
    b"tokens": 1.0,
    b"characters": 0.25,
    b"sentence": 25.0,
    b"sentences": 25.0,
    b"line": 14.0,
    b"lines": 14.0,
    b"bullet": 25.0,
    b"bullets": 25.0,
    b"points": 25.0,
    b"paragraph": 90.0,
    b"paragraphs": 90.0,
    b"page": 600.0,
    b"pages": 600.0,
    b"steps": 40.0,
    b"items": 20.0,
    b"ideas": 25.0,
    b"examples": 40.0,
    b"tips": 35.0,
    b"ways": 35.0,
    b"reasons": 35.0,
}
WIDE_TOKENS = {"字": 0.8, "句": 22.0, "段": 90.0, "条": 35.0, "点": 35.0, "个": 25.0, "行": 14.0, "首": 80.0}
_UNITS = frozenset(UNIT_TOKENS)
_ENGLISH = ["a", "an", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMBERS = {word.encode(): max(1, place - 1) for place, word in enumerate(_ENGLISH)} | {
    b"single": 1,
    b"few": 3,
    b"several": 5,
    b"hundred": 100,
    b"thousand": 1000,
}
_DIGITS = {
    "一": 1,
    "二": 2,
    "两": 2,
    "三": 3,
    "四": 4,
    "五": 5,
    "六": 6,
    "七": 7,
    "八": 8,
    "九": 9,
    "十": 10,
    "几": 3,
}
_WIDE = re.compile("([0-9]{1,5}|[一二两三四五六七八九十几])\\s*(?:个|句|多)?\\s*([字句段条点个行首])")
MAX_DIGITS = 5
BACK = 3  # words between a number and its unit, at most: "200 to 300 words", "5 short bullet points"
MOST_TOKENS = 16_384.0
BRIEF = frozenset(
    b"brief briefly short shortly concise concisely succinct quick only just simply yes no".split()
)
DETAILED = frozenset(
    b"detailed detail details comprehensive thorough long essay extensive depth complete full elaborate".split()
)
_WIDE_BRIEF = ("简短", "简要", "简单", "简洁", "一句话", "只需", "直接")
_WIDE_DETAILED = ("详细", "详尽", "全面", "深入", "完整", "长篇")


class Asked(NamedTuple):
    """`tokens` 0: no length is asked for."""

    tokens: float
    brief: float
    detailed: float


def asked(part: str, spoken: list[bytes], *, found: frozenset[bytes]) -> Asked:
    """`spoken`: the words of `part` in order; `found`: the set of them."""
    tokens = _counted(spoken) if not _UNITS.isdisjoint(found) else 0.0
    brief, detailed = not BRIEF.isdisjoint(found), not DETAILED.isdisjoint(found)
    if not part.isascii():
        tokens = tokens or _counted_wide(part)
        brief = brief or any(word in part for word in _WIDE_BRIEF)
        detailed = detailed or any(word in part for word in _WIDE_DETAILED)
    return Asked(min(tokens, MOST_TOKENS), float(brief), float(detailed))


def _counted(spoken: list[bytes]) -> float:
    """Of the last unit that has a number before it; of "100 to 200 words", the larger."""
    for at in range(len(spoken) - 1, 0, -1):
        each = UNIT_TOKENS.get(spoken[at])
        if each is None:
            continue
        numbers = [_number(word) for word in spoken[max(0, at - BACK) : at]]
        if any(numbers):
            return max(numbers) * each
    return 0.0


def _number(word: bytes) -> int:
    """0: no number."""
    return int(word) if word.isdigit() and len(word) <= MAX_DIGITS else _NUMBERS.get(word, 0)


def _counted_wide(part: str) -> float:
    """Words like "一个" and "一点" say no length; "一句", "一段" and "一首" do."""
    for number, unit in _WIDE.findall(part):
        times = int(number) if number.isdigit() else _DIGITS[number]
        if times > 1 or unit in "句段首":
            return times * WIDE_TOKENS[unit]
    return 0.0
