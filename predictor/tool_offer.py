"""What a request says about tools: how many it offers, whether one must be called, and whether one fits the question. Pure."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_TOOLS = 128
NAME_CHARS = 64
STEM_BYTES = 5  # of a word, so that "calculate" and "calculator" meet
_PIECES = re.compile("[A-Z]?[a-z]+|[A-Z]+")
# In so many names that saying them tells nothing about which tool is meant, and words that are in every question.
_EMPTY = frozenset(
    b"get set calculate calculator calc compute find finder search info information data detail details fetch retrieve "
    b"check list create update by from function api query analysis the a an of to in for and is are what me my i you on "
    b"at with".split()
)
_EMPTY_STEMS = frozenset(word[:STEM_BYTES] for word in _EMPTY)


class Offer(NamedTuple):
    """`tools` 0: none. `forced`: 1 a call is asked for, -1 forbidden, 0 left to the model."""

    tools: float = 0.0
    forced: float = 0.0
    overlap: float = (
        0.0  # of the words in the best fitting tool's name, the share that the user says; -1: none tells
    )
    covered: float = 0.0  # of the user's words, the share that is in any tool's name


NO_OFFER = Offer()


def offer(document: Mapping[str, Any], found: frozenset[bytes]) -> Offer:
    """`found`: the words of the last user message."""
    tools = document.get("tools") or document.get("functions")
    if not isinstance(tools, list) or not tools:
        return NO_OFFER
    return offered([_name(tool) for tool in tools[:MAX_TOOLS]], found, choice=document.get("tool_choice"))


def offered(names: list[str], found: frozenset[bytes], *, choice: object = None) -> Offer:
    """As `offer`, from the tools' names."""
    said = {word[:STEM_BYTES] for word in found - _EMPTY}
    told = [_stems(name) for name in names]
    forced = {"none": -1.0, "required": 1.0}.get(choice, 0.0) if isinstance(choice, str) else 0.0
    if isinstance(choice, dict):
        forced = 1.0
    overlap = max((len(stems & said) / len(stems) for stems in told if stems), default=-1.0)
    covered = len(said & set().union(*told)) / max(1, len(said))
    return Offer(float(len(names)), forced, overlap, covered)


def _stems(name: str) -> set[bytes]:
    pieces = _PIECES.findall(name[:NAME_CHARS])
    return {piece.lower().encode()[:STEM_BYTES] for piece in pieces} - _EMPTY_STEMS


def _name(tool: object) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""
