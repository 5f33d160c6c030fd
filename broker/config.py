"""`headway.yaml`: which models are served, by which engines. Read by the API, the workers and `headway up`.

Without a file there are two pools, `small` and `large`, both the embedded SmolLM2, so that a fresh clone answers.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from broker.class_limits import ClassConfigs, by_queue, limits_of_pool
from broker.errors import ConfigError
from broker.job import POOL_NAME
from broker.policy import QueueLimits
from broker.route_config import RouteConfig, check_routes
from broker.settings import Settings
from broker.shards import MAX_SHARDS, Shards
from broker.tenants import Tenant, TenantConfig
from broker.wrong_values import describe
from broker.yaml_file import load_yaml

EMBEDDED = "llamacpp"
EMBEDDED_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_FILE = Path("headway.yaml")
MIN_SPEED, MAX_SPEED = 0.01, 100.0

Dialect = Literal["auto", "vllm", "sglang", "tgi", "llamacpp", "ollama", "openai"]


def _pool_name(name: str) -> str:
    if POOL_NAME.fullmatch(name) is None:
        raise ValueError("is no pool name (64 of letters, digits, '.', '_', '-'; put others into `aliases`)")
    return name


def check_engine(engine: str) -> str:
    """Without a slash at its end. Raises ValueError."""
    if engine != EMBEDDED and not engine.startswith(("http://", "https://")):
        raise ValueError(f"is neither {EMBEDDED!r} nor the http:// address of an OpenAI-compatible server")
    try:
        parts = urlsplit(engine)
        names_one = parts.hostname and parts.port != 0
    except ValueError:
        names_one = False
    if engine != EMBEDDED and not names_one:
        raise ValueError("names no host, or no port between 1 and 65535, such as http://127.0.0.1:8000")
    return engine.rstrip("/")


def check_tenants(tenants: Sequence[TenantConfig], *, names: Collection[str]) -> None:
    """`names`: of models and routes. Raises ValueError."""
    owners: dict[bytes, str] = {}
    seen: set[str] = set()
    for tenant in tenants:
        if tenant.name in seen:
            raise ValueError("tenants: two have the same name")
        seen.add(tenant.name)
        for pool in tenant.pools:
            if pool not in names:
                raise ValueError(f"tenants: {tenant.name}: pools: there is no model or route {pool!r}")
        for digest in tenant.named_digests:
            owner = owners.setdefault(digest, tenant.name)
            if owner != tenant.name:
                raise ValueError(f"tenants: {owner!r} and {tenant.name!r} have a key in common")


class ModelConfig(BaseModel):
    """One pool: the queue of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    pool: Annotated[str, AfterValidator(_pool_name)]
    engine: Annotated[str, AfterValidator(check_engine)] = EMBEDDED
    dialect: Dialect = "auto"  # of an engine at an address
    model: str | None = Field(default=None, min_length=1)  # the engine's name for it; None: any
    slots: int | None = Field(default=None, strict=True, ge=1, le=4096)  # None: HEADWAY_SLOTS
    kv_tokens: int | None = Field(
        default=None, strict=True, ge=1
    )  # the engine's KV cache; None: not looked at
    tokenizer: Path | None = None  # its tokenizer.json; None: prompt tokens are estimated
    shards: int = Field(default=1, strict=True, ge=1, le=MAX_SHARDS)  # queues that it is spread over (ADR 9)
    speed: float = Field(default=1.0, strict=True, ge=MIN_SPEED, le=MAX_SPEED)  # of its workers; 1: usual
    gpus: int = Field(default=1, strict=True, ge=1, le=1024)  # that one replica runs on
    gpu_hour_usd: float = Field(
        default=0.0, ge=0.0, le=10_000.0
    )  # what one of them costs; 0: no money is shown
    aliases: tuple[str, ...] = ()  # further names that requests may use
    api_key: SecretStr | None = None  # sent to the engine
    fallback: str | None = None  # the pool that serves its requests while nobody serves this one
    classes: ClassConfigs = Field(default_factory=dict)  # what may wait here, in place of the general limits

    @property
    def embedded(self) -> bool:
        return self.engine == EMBEDDED


class Config(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[ModelConfig, ...] = Field(
        default=(ModelConfig(pool="small"), ModelConfig(pool="large", fallback="small")), min_length=1
    )

    classes: ClassConfigs = Field(default_factory=dict)  # what may wait of each, per pool
    tenants: tuple[TenantConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()  # without models of your own: `auto` over `small` and `large`

    @model_validator(mode="before")
    @classmethod
    def _route_by_default(cls, document: Any) -> Any:
        if isinstance(document, dict) and not {"models", "routes"} & document.keys():
            return document | {"routes": [{"name": "auto", "small": "small", "large": "large"}]}
        return document

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for model in self.models:
            for name in (model.pool, *model.aliases):
                if name in seen:
                    raise ValueError(f"models: the name {name!r} is used twice")
                seen.add(name)
        pools = {model.pool for model in self.models}
        for model in self.models:
            if model.fallback is not None and model.fallback not in pools - {model.pool}:
                raise ValueError(
                    f"models: {model.pool}: there is no other pool {model.fallback!r} to fall back to"
                )
        check_routes(self.routes, pools=[model.pool for model in self.models], taken=seen)
        check_tenants(self.tenants, names={*seen, *(route.name for route in self.routes)})
        return self

    @property
    def shards(self) -> Shards:
        """Made anew: whoever deals out jobs keeps one."""
        return Shards({model.pool: model.shards for model in self.models})

    def limits_of(self, *, max_queued: int) -> Callable[[str], QueueLimits]:
        """How much a queue takes, by its name. `max_queued`: jobs of a pool, whatever their class."""

        def of_pool(pool: str) -> QueueLimits:
            model = next((m for m in self.models if m.pool == pool), None)
            own, queues = (model.classes, model.shards) if model else ({}, 1)
            return limits_of_pool(self.classes, own, jobs=max_queued, queues=queues)

        return by_queue(of_pool)

    def tenant(self, name: str) -> Tenant:
        """By name. Once there are tenants, also one that is not listed has a weight: it shares with the others."""
        found = next((each.tenant for each in self.tenants if each.name == name), None)
        return found or Tenant(name, weight=1.0 if self.tenants else 0.0)

    def route(self, name: str) -> RouteConfig | None:
        return next((route for route in self.routes if route.name == name), None)

    def find(self, name: str) -> ModelConfig | None:
        """By pool name or alias."""
        return next((m for m in self.models if name == m.pool or name in m.aliases), None)


def load_config(settings: Settings) -> Config:
    """Raises ConfigError that names the file and every wrong entry."""
    path = settings.config or DEFAULT_FILE
    if settings.config is None and not path.exists():
        return Config()
    try:
        document: Any = load_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return Config.model_validate({} if document is None else document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {describe(error)}") from None
