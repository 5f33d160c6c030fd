"""`headway.yaml`: which models are served, by which engines. Read by the API, the workers and `headway up`.

Without a file there are two pools, `small` and `large`, both the embedded SmolLM2, so that a fresh clone answers.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from broker.errors import ConfigError
from broker.job import POOL_NAME
from broker.settings import Settings
from broker.wrong_values import describe

EMBEDDED = "llamacpp"
EMBEDDED_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_FILE = Path("headway.yaml")

Dialect = Literal["vllm", "sglang", "tgi", "llamacpp", "ollama", "openai"]


def _pool_name(name: str) -> str:
    if POOL_NAME.fullmatch(name) is None:
        raise ValueError("is no pool name (64 of letters, digits, '.', '_', '-'; put others into `aliases`)")
    return name


def _engine(engine: str) -> str:
    if engine != EMBEDDED and not engine.startswith(("http://", "https://")):
        raise ValueError(f"is neither {EMBEDDED!r} nor the http:// address of an OpenAI-compatible server")
    return engine.rstrip("/")


class ModelConfig(BaseModel):
    """One pool: the queue of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    pool: Annotated[str, AfterValidator(_pool_name)]
    engine: Annotated[str, AfterValidator(_engine)] = EMBEDDED
    dialect: Dialect = "openai"  # of an engine at an address
    model: str | None = Field(default=None, min_length=1)  # the engine's name for it; None: any
    slots: int | None = Field(default=None, ge=1, le=4096)  # None: HEADWAY_SLOTS
    kv_tokens: int | None = Field(default=None, ge=1)  # size of the engine's KV cache; None: not looked at
    aliases: tuple[str, ...] = ()  # further names that requests may use
    api_key: SecretStr | None = None  # sent to the engine

    @property
    def embedded(self) -> bool:
        return self.engine == EMBEDDED


class Config(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[ModelConfig, ...] = Field(
        default=(ModelConfig(pool="small"), ModelConfig(pool="large")), min_length=1
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for model in self.models:
            for name in (model.pool, *model.aliases):
                if name in seen:
                    raise ValueError(f"models: the name {name!r} is used twice")
                seen.add(name)
        return self

    def find(self, name: str) -> ModelConfig | None:
        """By pool name or alias."""
        return next((m for m in self.models if name == m.pool or name in m.aliases), None)


def load_config(settings: Settings) -> Config:
    """Raises ConfigError that names the file and every wrong entry."""
    path = settings.config or DEFAULT_FILE
    if settings.config is None and not path.exists():
        return Config()
    try:
        document: Any = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from None
    try:
        return Config.model_validate({} if document is None else document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {describe(error)}") from None
