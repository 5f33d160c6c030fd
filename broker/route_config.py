"""`routes` of headway.yaml: virtual model names that choose between a small and a large pool, request by request."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

DEFAULT_SHARE = 0.3
MAX_WINDOW = 64


class TargetConfig(BaseModel):
    """What the threshold is set by: `share_large` of requests that go to the large pool, or `quality`: the share of what
    the large model gains over the small one that is to be kept. Neither: DEFAULT_SHARE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share_large: float | None = Field(default=None, ge=0.0, le=1.0)
    quality: float | None = Field(default=None, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.share_large is not None and self.quality is not None:
            raise ValueError("give share_large or quality, not both")
        return self


class CascadeConfig(BaseModel):
    """`types`: kinds of prompts for which the engine's confidence means something. `window`: tokens that the verdict looks
    at. `floor`: least confidence, until feedback has taught another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    types: tuple[str, ...] = ("fact", "extraction", "maths", "classification")
    window: int = Field(default=16, ge=1, le=MAX_WINDOW)
    floor: float = Field(default=0.7, ge=0.0, le=1.0)

    def judges(self, kind: str, document: Mapping[str, Any]) -> bool:
        """Whether a verdict by confidence falls on a request: of a kind that it means something for, with one answer in text."""
        several = document.get("n") not in (None, 1) or isinstance(document.get("prompt"), list)
        return kind in self.types and not several and not document.get("tools")


def _switch(value: Any) -> Any:
    """`cascade: true` stands for the defaults."""
    return {True: {}, False: None}.get(value, value) if isinstance(value, bool) else value


class RouteConfig(BaseModel):
    """One route."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")
    small: str
    large: str
    target: TargetConfig = TargetConfig()
    slo_s: float = Field(default=10.0, gt=0.0)  # of waiting; past it the threshold moves
    escalate: bool = True  # what the small model gets wrong goes to the large one
    cascade: Annotated[CascadeConfig | None, BeforeValidator(_switch)] = None
    sticky_s: float = Field(
        default=1800.0, ge=0.0
    )  # a conversation keeps its pool for so long after its last turn


def check_routes(routes: Sequence[RouteConfig], *, pools: Sequence[str], taken: set[str]) -> None:
    """`taken`: names of models. Raises ValueError."""
    for route in routes:
        if route.name in taken:
            raise ValueError(f"routes: the name {route.name!r} is used twice")
        taken = taken | {route.name}
        for pool in (route.small, route.large):
            if pool not in pools:
                raise ValueError(f"routes: {route.name}: there is no pool {pool!r} among the models")
        if route.small == route.large:
            raise ValueError(f"routes: {route.name}: small and large are the same pool")
