"""What words and pairs of words tell: sums of weights over a prompt's, learned by ridge regression. Pure after loading.

The weights stand in `models/lexicon.json`; `python -m predictor.train lexicon` makes them. They are fixed: what traffic
teaches goes into the trees, which take these sums as features.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import orjson

Weights = Mapping[bytes, float]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """`length`: of log(1 + output tokens) about its mean; `tool`: of the log-odds that a tool is called."""

    length: Weights
    tool: Weights

    def scores(self, found: Iterable[bytes]) -> tuple[float, float]:
        """`found`: the set of a prompt's words and pairs of words."""
        length, tool = self.length, self.tool
        return (
            sum([length[word] for word in found if word in length]),
            sum([tool[word] for word in found if word in tool]),
        )


EMPTY = Lexicon({}, {})


@cache
def shipped() -> Lexicon:
    """The one that comes with Headway; empty if it is missing, so that forecasts are worse but never fail."""
    file = files("predictor").joinpath("models", "lexicon.json")
    if not file.is_file():
        return EMPTY
    found = orjson.loads(file.read_bytes())
    return Lexicon(*({w.encode(): float(x) for w, x in found[name].items()} for name in ("length", "tool")))
