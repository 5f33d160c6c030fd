"""Forecasts are in order, within what the caller allows, and never fail."""

import math

import pytest

from predictor.features import Features, extract
from predictor.history import History, Past
from predictor.length import MOST_TOKENS, USUAL_LOG, Calibration, Raw, lengths
from predictor.tool_call import UNKNOWN, likelihood


def features(**more: object) -> Features:
    return extract({"messages": [{"role": "user", "content": "hi"}], **more})


def raw(p50: float, p90: float, mean: float) -> Raw:
    """Of a request of which nothing is known: around the usual length."""
    return Raw(math.log1p(p50) - USUAL_LOG, math.log1p(p90) - USUAL_LOG, mean / math.exp(USUAL_LOG))


def test_logarithms_become_tokens() -> None:
    assert lengths(raw(100, 300, 140), features()) == pytest.approx((100, 300, 140))


def test_calibration_moves_each() -> None:
    shifted = Calibration(p50_shift=math.log(2), p90_shift=0.0, mean_factor=1.5)
    assert lengths(raw(99, 999, 100), features(), calibration=shifted) == pytest.approx((199, 999, 150))


def test_what_is_known_of_the_like_is_the_anchor() -> None:
    """A tenth of the answers of a pool is a tenth of the forecast; a template counts for more, the more it has seen."""
    document = {"messages": [{"role": "user", "content": "hi"}]}
    long, short = History(1000, math.log1p(2000)), History(1000, math.log1p(200))
    zero = Raw(0.0, 0.0, 1.0)
    of_long = lengths(zero, extract(document, Past(pool=long)))
    of_short = lengths(zero, extract(document, Past(pool=short)))
    assert of_long.p50 == pytest.approx(10 * of_short.p50, rel=0.05)
    both = lengths(zero, extract(document, Past(template=short, pool=long)))
    assert both.p50 == pytest.approx(of_short.p50, rel=0.05)
    hardly = lengths(zero, extract(document, Past(template=History(1, short.mean_log), pool=long)))
    assert of_short.p50 < hardly.p50 < of_long.p50


def test_models_that_are_not_anchored_start_from_the_usual_length() -> None:
    document = {"messages": [{"role": "user", "content": "hi"}]}
    long = extract(document, Past(pool=History(1000, math.log1p(2000))))
    found = [
        lengths(Raw(0.0, 0.0, 1.0), long, calibration=Calibration(anchored=share)).p50
        for share in (0.0, 0.5, 1.0)
    ]
    assert found[0] == pytest.approx(math.expm1(USUAL_LOG))
    assert found[0] < found[1] < found[2]


def test_answers_of_the_conversation_move_the_anchor() -> None:
    answered = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "word " * 1000}] * 4
    found = [
        extract({"messages": [*before, {"role": "user", "content": "go on"}]}) for before in ([], answered)
    ]
    usual, long = (lengths(Raw(0.0, 0.0, 1.0), features).p50 for features in found)
    assert long > 2 * usual


def test_the_callers_limit_holds_for_each_choice() -> None:
    found = lengths(raw(100, 300, 140), features(max_tokens=50, n=3))
    assert found == (150, 150, 150)


def test_p90_is_never_below_p50_and_nothing_below_one_token() -> None:
    found = lengths(Raw(1.0, -1.0, -3.0), features())
    assert found.p90 == found.p50
    assert found.mean == 1


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300])
def test_odd_numbers_give_finite_forecasts(odd: float) -> None:
    found = lengths(Raw(odd, odd, odd), features())
    assert all(1 <= tokens <= MOST_TOKENS for tokens in found)


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("more", "said", "expected"),
    [
        ({}, 0.9, 0.0),
        ({"tools": TOOLS}, 0.9, 0.9),
        ({"tools": TOOLS, "tool_choice": "none"}, 0.9, 0.0),
        ({"tools": TOOLS, "tool_choice": "required"}, 0.1, 1.0),
        ({"tools": TOOLS}, math.nan, UNKNOWN),
    ],
)
def test_tool_call_is_decided_by_the_request_where_it_can_be(
    more: dict[str, object], said: float, expected: float
) -> None:
    assert likelihood(said, features(**more)) == expected
