"""What the models know of a request before it runs. Pure, bounded: long texts are looked at in windows only.

`FEATURES` names the numbers in the order in which every model takes them; a model file carries the names it was trained
on, and is refused if they differ (`VERSION` is for people). Bodies are checked before; still, nothing here raises for
a body of any shape.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from predictor import asked_length, prompt_types, tool_offer
from predictor.history import NO_PAST, History, Past, key_of
from predictor.lexicon import Lexicon, shipped
from predictor.prompt_parts import Parts, read
from predictor.prompt_types import TYPES, PromptType
from predictor.tokens import NOTHING, Count, Estimated, Makeup, makeup

VERSION = 1
TOKENS_PER_MESSAGE = 4  # role and separators of a chat template
TOKENS_PER_IMAGE = 765.0  # what GPT-4o counts for 1024 x 1024 pixels
LIKE_ALL = 0.9  # where the last message is this much of the prompt, the rest is taken to be made up like it
SIZES = ("prompt_tokens", "user_tokens", "system_tokens", "tool_tokens", "messages")
ANSWERS = ("answers", "last_answer_tokens", "mean_answer_tokens", "after_tool", "calls")
STYLE = ("wide_share", "accented_share", "mark_share", "digit_share", "lines", "questions", "fences")
ASKED = ("asked_tokens", "brief", "detailed", "limit_tokens", "json_asked")
TYPE = tuple(f"type_{kind}" for kind in TYPES)
OFFER = ("tools", "tool_forced", "tool_overlap", "tool_covered")
PAST = ("template_count", "template_mean_log", "template_q50", "template_q90", "pool_count", "pool_mean_log")
WORDS = ("words_length", "words_tool")
FEATURES: tuple[str, ...] = (*SIZES, *ANSWERS, *STYLE, *ASKED, *TYPE, *OFFER, *PAST, *WORDS)
INDEX = {name: place for place, name in enumerate(FEATURES)}
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Features:
    """Of one request. `values` in the order of FEATURES."""

    values: tuple[float, ...]
    prompt_tokens: int  # all that the engine reads, at least 1
    limit_tokens: int  # of one choice; 0: the caller sets none
    choices: int
    prompt_type: PromptType
    template: str  # see `history.template_key`
    words: frozenset[bytes] = field(
        repr=False
    )  # and pairs, of the last message; for lexicons, never to be stored

    def vector(self) -> "array[float]":
        """For the C call of LightGBM: doubles in the order of FEATURES."""
        return array("d", self.values)

    def __getitem__(self, name: str) -> float:
        return self.values[INDEX[name]]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads requests of one pool. `count`: its tokens."""

    count: Count = field(default_factory=Estimated)
    lexicon: Lexicon = field(default_factory=shipped)

    def read(self, document: Mapping[str, Any], past: Past = NO_PAST) -> Features:
        """`document`: a request in OpenAI's shape, of any endpoint."""
        parts = read(document)
        return self.features(document, parts, past=past)

    def features(
        self, document: Mapping[str, Any], parts: Parts, *, past: Past, template: str = ""
    ) -> Features:
        """As `read`, where the parts (and from them the template, and so the past) are known already."""
        part = prompt_types.window(parts.user)
        spoken = prompt_types.words(part)
        found = frozenset(spoken)
        said = found.union(prompt_types.phrases(spoken))
        made = _makeup(parts.user)
        types = prompt_types.kinds(part, found)
        sizes, per_char = self._sizes(document, parts, made=made)
        limit = _limit(document)
        json_asked = float(isinstance(document.get("response_format"), dict))
        values = (
            *sizes,
            *_answers(parts, per_char),
            *_style(part, made),
            *asked_length.asked(part, spoken, found=found),
            float(limit),
            json_asked,
            *types,
            *tool_offer.offer(document, found),
            *_past(past),
            *self.lexicon.scores(said),
        )
        return Features(
            values=values,
            prompt_tokens=max(1, round(sizes[0])),
            limit_tokens=limit,
            choices=_choices(document),
            prompt_type=prompt_types.named(types),
            template=template or key_of(parts, document=document),
            words=said,
        )

    def _sizes(
        self, document: Mapping[str, Any], parts: Parts, *, made: Makeup
    ) -> tuple[tuple[float, ...], float]:
        """SIZES, and tokens per character of the whole."""
        user, size = self.count.tokens(parts.user, made), sum(map(len, parts.texts))
        if size * LIKE_ALL <= len(parts.user):
            text = user * size / max(1, len(parts.user))
        else:
            whole = "".join(parts.texts)
            text = self.count.tokens(whole, _makeup(whole))
        per_char = text / size if size else 0.25
        tools = self._tools(document)
        extra = TOKENS_PER_MESSAGE * parts.messages + TOKENS_PER_IMAGE * parts.images + parts.token_ids
        system = per_char * len(parts.system)
        return (text + tools + extra, user, system, tools, float(parts.messages)), per_char

    def _tools(self, document: Mapping[str, Any]) -> float:
        tools = document.get("tools") or document.get("functions")
        if not isinstance(tools, list) or not tools:
            return 0.0
        try:
            text = orjson.dumps(tools).decode()
        except orjson.JSONEncodeError:
            return 0.0
        return self.count.tokens(text, _makeup(text))


READER = Reader()


def extract(document: Mapping[str, Any], past: Past | History = NO_PAST) -> Features:
    """With estimated tokens and the shipped lexicon. A History alone is the template's."""
    return READER.read(document, Past(past) if isinstance(past, History) else past)


def with_past(values: Sequence[float], past: Past) -> tuple[float, ...]:
    """A request's `values` as they had been with another past."""
    start = INDEX[PAST[0]]
    return (*values[:start], *_past(past), *values[start + len(PAST) :])


def _makeup(text: str) -> Makeup:
    return makeup(text.encode("utf-8", "surrogatepass")) if text else NOTHING


def _answers(parts: Parts, per_char: float) -> tuple[float, ...]:
    answers = parts.answers
    if not answers:
        return (0.0, -1.0, -1.0, float(parts.last_role == "tool"), float(parts.calls))
    mean = per_char * sum(answers) / len(answers)
    return (
        float(len(answers)),
        per_char * answers[-1],
        mean,
        float(parts.last_role == "tool"),
        float(parts.calls),
    )


def _style(part: str, made: Makeup) -> tuple[float, ...]:
    return (
        made.wide,
        made.accented,
        made.marks,
        made.digits,
        made.newlines * made.size,
        float(part.count("?") + (0 if part.isascii() else part.count("？"))),
        float("```" in part),
    )


def _past(past: Past) -> tuple[float, ...]:
    """Nothing known is -1, so that the trees can tell it from short answers."""
    template, pool = past.template, past.pool
    mine = (template.mean_log, template.q50, template.q90) if template.count else (-1.0, -1.0, -1.0)
    return (float(template.count), *mine, float(pool.count), pool.mean_log if pool.count else -1.0)


def _limit(document: Mapping[str, Any]) -> int:
    limits = (document.get(name) for name in _LIMITS)
    return next((limit for limit in limits if type(limit) is int and limit > 0), 0)


def _choices(document: Mapping[str, Any]) -> int:
    n = document.get("n")
    return n if type(n) is int and 0 < n <= 128 else 1
