"""Where a line goes that names a route. Pure: by its prompt alone, so that a line that is asked again goes where it went."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker import request_checks
from broker.heirs import Plan
from broker.placement import place
from broker.route_config import RouteConfig
from predictor.features import Features
from predictor.router import shared_router


@dataclass(frozen=True, slots=True)
class Aim:
    """`heir`: the pool that it may be handed on to, and `plan` when; "": it may not. `route`: in words. `features`: read of
    the line, if they were."""

    pool: str
    heir: str = ""
    plan: Plan = field(default_factory=Plan)
    route: str = ""
    features: Features | None = field(default=None, repr=False)

    @property
    def pools(self) -> frozenset[str]:
        """All that it may come to."""
        return frozenset({self.pool, self.heir} - {""})


def aim(
    route: RouteConfig, document: Mapping[str, Any], *, endpoint: str, floors: Mapping[str, float]
) -> Aim:
    """`floors`: what feedback has taught (`feedback.floors`); not the threshold, for that decides the pool."""
    if endpoint == request_checks.EMBEDDINGS:
        return Aim(route.small)
    router = shared_router()
    wanted, features = router.read(document)
    placed = place(router.rule(route), wanted)
    if placed.pool != route.small or not route.escalate:
        return Aim(placed.pool, route=placed.text, features=features)
    plan, cascade = Plan(), route.cascade
    if cascade is not None and cascade.judges(placed.kind, document):
        plan = Plan(cascade.window, floors.get(f"{route.name} {placed.kind}", cascade.floor))
    return Aim(placed.pool, route.large, plan, placed.text, features)
