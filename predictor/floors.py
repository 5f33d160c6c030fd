"""What feedback teaches: how confident, or how likely to suffice, the small model has to be. Pure.

Only answers that were given are rated, so nothing is known of those below the floor. Where even the least sure answers
that were given are good, the floor goes down by STEP, to find out.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from broker.feedback import Outcome
from broker.route_config import RouteConfig

ENOUGH = 40  # ratings of one kind
ENOUGH_LARGE = 20
GOOD = 0.9  # share of good answers that is wanted where too few of the large model have been rated
QUALITY = 0.95  # of the large model's share, where the route names none
STEP = 0.05
LOWEST, HIGHEST = 0.1, 0.98
FIFTH = 5

Rated = tuple[float, bool]  # what the answer was let through by, and whether it was good


def learn(outcomes: Iterable[Outcome], routes: Iterable[RouteConfig]) -> dict[str, float]:
    """Floors by "<route> <kind>", and thresholds by "<route> *" of routes whose target is quality."""
    by_route: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_route[outcome.route].append(outcome)
    return {
        f"{route.name} {kind}": floor
        for route in routes
        for kind, floor in _of_route(by_route[route.name], route).items()
    }


def _of_route(outcomes: Sequence[Outcome], route: RouteConfig) -> dict[str, float]:
    small = [each for each in outcomes if each.pool == route.small]
    wanted = _wanted([each.good for each in outcomes if each.pool == route.large], route)
    rated: dict[str, list[Rated]] = defaultdict(list)
    for each in small:
        if each.confidence is not None and route.cascade is not None:
            rated[each.kind].append((each.confidence, each.good))
    if route.target.quality is not None:
        rated["*"] = [(each.p, each.good) for each in small]
    found = {kind: floor(some, wanted=wanted) for kind, some in rated.items()}
    return {kind: value for kind, value in found.items() if value is not None}


def _wanted(large: Sequence[bool], route: RouteConfig) -> float:
    """The share of good answers that the small model has to reach."""
    if len(large) < ENOUGH_LARGE:
        return GOOD
    quality = QUALITY if route.target.quality is None else route.target.quality
    return quality * sum(large) / len(large)


def floor(rated: Sequence[Rated], *, wanted: float) -> float | None:
    """The lowest above which the share of good answers is `wanted`; None if too few were rated."""
    if len(rated) < ENOUGH:
        return None
    ordered = sorted(rated, reverse=True)
    good, lowest = 0, HIGHEST
    for n, (at, was_good) in enumerate(ordered, 1):
        good += was_good
        is_last = n == len(ordered) or ordered[n][0] < at
        if is_last and good >= wanted * n:
            lowest = at
    if lowest == ordered[-1][0] and _least_sure(ordered) >= wanted:
        lowest -= STEP
    return round(min(max(lowest, LOWEST), HIGHEST), 4)


def _least_sure(ordered: Sequence[Rated]) -> float:
    """Share of good answers among the last fifth, and those that were as sure."""
    at = ordered[-(len(ordered) // FIFTH)][0]
    some = [was_good for sure, was_good in ordered if sure <= at]
    return sum(some) / len(some)
