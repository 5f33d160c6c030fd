"""From a request to where it goes: what the classifier says of it, and the route's threshold. No I/O after loading.

`Router` never raises and never waits: whatever is wrong with the model, `sufficiency.ByRule` stands in.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from broker.placement import Rule, Wanted
from broker.route_config import DEFAULT_SHARE, RouteConfig
from predictor.features import Features, extract
from predictor.sufficiency import MODEL, ByRule, Sufficiency, load

log = logging.getLogger("headway.router")
UNKNOWN = Wanted(p=0.5, kind="chat")


def load_or_rule(path: Path = MODEL) -> Sufficiency:
    """A model that cannot be used is said once, at the start."""
    try:
        return load(path)
    except ConfigError as error:
        log.warning("%s; requests are routed by the kind of prompt alone", error)
        return ByRule()


@cache
def shared_router() -> "Router":
    """The process's own, for those who are given none."""
    return Router()


@dataclass(frozen=True, slots=True)
class Router:
    """One per process."""

    sufficiency: Sufficiency = field(default_factory=load_or_rule)

    def look(self, document: Mapping[str, Any]) -> Wanted:
        """What is known of a request in OpenAI's shape."""
        return self.read(document)[0]

    def read(self, document: Mapping[str, Any]) -> tuple[Wanted, Features | None]:
        """The same, and what it rests on, for whoever forecasts the request; None where it could not be judged."""
        try:
            features = extract(document)
            return self.judge(features), features
        except Exception:  # outermost guard of prediction: it never fails a request
            log.exception("a request could not be judged; it counts as undecided")
            return UNKNOWN, None

    def judge(self, features: Features) -> Wanted:
        return Wanted(p=self.sufficiency.probability(features), kind=features.prompt_type.value)

    def rule(self, route: RouteConfig, *, learned: float | None = None) -> Rule:
        """`learned`: the threshold that feedback has taught, for a route whose target is quality."""
        target = route.target
        if target.quality is not None:
            threshold = self.sufficiency.curve.for_quality(target.quality) if learned is None else learned
        else:
            share = DEFAULT_SHARE if target.share_large is None else target.share_large
            threshold = self.sufficiency.curve.for_share(share)
        return Rule(route.name, route.small, route.large, threshold, route.slo_s)
