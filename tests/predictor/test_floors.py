"""Floors follow what callers say: up where unsure answers were bad, down where all were good, not without enough ratings."""

import pytest

from broker.feedback import Outcome
from broker.route_config import RouteConfig
from predictor.floors import ENOUGH, ENOUGH_LARGE, STEP, floor, learn

CASCADE = RouteConfig.model_validate({"name": "auto", "small": "s", "large": "l", "cascade": True})
QUALITY = RouteConfig.model_validate({"name": "auto", "small": "s", "large": "l", "target": {"quality": 0.9}})


def rated(*bands: tuple[float, int, int]) -> list[tuple[float, bool]]:
    """Bands of (confidence, good, bad)."""
    return [(at, n < good) for at, good, bad in bands for n in range(good + bad)]


def test_the_floor_is_where_answers_are_good_enough() -> None:
    assert floor(rated((0.95, 60, 0), (0.85, 40, 2), (0.6, 10, 40)), wanted=0.95) == 0.85


def test_where_even_the_least_sure_are_good_it_goes_down_a_step() -> None:
    assert floor(rated((0.9, 50, 0), (0.7, 50, 1)), wanted=0.95) == pytest.approx(0.7 - STEP)


def test_too_few_ratings_teach_nothing() -> None:
    assert floor(rated((0.9, ENOUGH - 1, 0)), wanted=0.9) is None


def outcomes(pool: str, *, good: int, bad: int, confidence: float | None = 0.8) -> list[Outcome]:
    return [Outcome("auto", "fact", 0.8, pool, n < good, confidence=confidence) for n in range(good + bad)]


def test_what_is_wanted_is_a_share_of_what_the_large_model_reaches() -> None:
    """Half of the large model's answers are good: half will do."""
    small = outcomes("s", good=30, bad=30)
    strict, mild = (learn(small + large, [CASCADE]) for large in ([], outcomes("l", good=20, bad=20)))
    assert strict["auto fact"] > mild["auto fact"]
    assert len(outcomes("l", good=20, bad=20)) >= ENOUGH_LARGE


def test_only_a_route_with_a_quality_target_learns_a_threshold() -> None:
    some = outcomes("s", good=60, bad=0, confidence=None)
    assert learn(some, [CASCADE]) == {}
    assert set(learn(some, [QUALITY])) == {"auto *"}


def test_answers_of_other_routes_teach_nothing() -> None:
    other = [Outcome("else", "fact", 0.8, "s", True, confidence=0.9)] * 100
    assert learn(other, [CASCADE]) == {}
