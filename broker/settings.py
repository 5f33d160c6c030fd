"""Everything that may be set, by `HEADWAY_*` variables. Built once in a program's `main`, then passed down.

Called by each program's entry point, which gives `Settings` to its parts; nothing else reads the environment. A wrong
value refuses to start and names its variable. What is served (models, engines) is in `headway.yaml`: `broker/config.py`.
"""

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import orjson
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from broker.errors import ConfigError
from broker.otel_settings import OtelSettings, traces_url
from broker.policy import Aging, Breaker, Limits, Memory, Order, Passing
from broker.topology import KINDS, parse
from broker.wrong_values import describe

PREFIX = "HEADWAY_"
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
# Read by the client commands and the tests, not by the programs; the rest is what a Kubernetes service of the name
# `headway` puts into every pod's environment.
FOREIGN_VARIABLES = ("HEADWAY_URL", "HEADWAY_API_KEY")
FOREIGN_PREFIXES = ("HEADWAY_TEST_", "HEADWAY_SERVICE_", "HEADWAY_PORT_")


class Settings(BaseSettings):
    """Frozen and bounded. Fields without a unit in their name are no quantities."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    # Where things are
    home: Path = Field(default=Path(".headway"), validate_default=True)
    config: Path | None = None  # headway.yaml; None: the one in the working directory, if there is one
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8000, ge=0, le=65535)  # 0: any free port
    flower_port: int = Field(default=0, ge=0, le=65535)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    otlp_endpoint: str = Field(default_factory=lambda: OtelSettings().traces_url)  # "": no traces are made

    # The stores. Queue, stream and Celery may sit on three servers
    redis_url: str = Field(default_factory=lambda values: own_redis_url(values["home"]))
    stream_url: str = Field(default_factory=lambda values: values["redis_url"])
    celery_url: str = Field(default_factory=lambda values: values["redis_url"])
    chores_url: str = Field(
        default_factory=lambda values: _of_chores(values["redis_url"], values["celery_url"])
    )
    files_url: str = Field(default_factory=lambda values: (values["home"] / "files").as_uri())
    redis_timeout_s: float = Field(default=5.0, gt=0, le=60)
    appendfsync: Literal["everysec", "always"] = "everysec"  # of the redis-server that `headway up` starts

    # Admission
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()  # comma separated; none: open
    max_body_bytes: int = Field(default=16 * 2**20, ge=1024, le=2**30)
    max_file_bytes: int = Field(default=2**30, ge=1024, le=2**44)
    max_queued: int = Field(default=10_000, ge=1, le=10_000_000)  # jobs per pool
    limits_without_redis: Literal["closed", "open"] = "closed"  # whether limited requests pass unmetered
    callbacks_to_private: bool = False  # whether webhooks may go into this network
    callback_secret: SecretStr | None = (
        None  # of tenants without one of their own; none: each gets one in Redis
    )
    callback_max_bytes: int = Field(default=256 * 1024, ge=1024, le=16 * 2**20)  # a larger result is left out
    max_connections: int = Field(default=4096, ge=1, le=1_000_000)  # concurrent requests per API process

    # Time limits and retention
    request_timeout_s: float = Field(default=600.0, gt=0, le=86_400)  # where a request names none
    ping_s: float = Field(default=15.0, gt=0, le=300)  # between comment lines on a silent stream
    replay_ttl_s: float = Field(default=300.0, ge=1, le=86_400)  # chunks, after the job ended
    result_ttl_s: float = Field(default=86_400.0, ge=1, le=30 * 86_400)  # jobs submitted for polling
    batch_ttl_s: float = Field(default=30 * 86_400.0, ge=60, le=365 * 86_400)  # batches and their files

    # The queue's order and retries
    sjf_weight: float = Field(default=1.0, ge=0, le=1000)  # arrival s per predicted s
    age_p1_s: float = Field(
        default=10.0, ge=0, le=30 * 86_400
    )  # then a P1 job waits with the P0 jobs; 0: never
    age_p2_s: float = Field(default=600.0, ge=0, le=30 * 86_400)
    age_p3_s: float = Field(default=1800.0, ge=0, le=30 * 86_400)
    aged_share: float = Field(default=0.2, gt=0, le=1)  # of a level's claims, while others wait there
    lease_s: float = Field(default=10.0, ge=1, le=600)
    max_engine_errors: int = Field(default=3, ge=1, le=100)  # then the job is dead-lettered
    max_worker_deaths: int = Field(default=3, ge=1, le=100)
    retry_base_s: float = Field(default=0.5, gt=0, le=60)
    retry_cap_s: float = Field(default=30.0, gt=0, le=3600)
    breaker_share: float = Field(default=0.1, ge=0, lt=1)  # of a worker's requests that may fail; 0: any
    breaker_requests: int = Field(default=20, ge=1, le=1_000_000)  # it is judged by at least so many
    breaker_window_s: float = Field(default=60.0, ge=1, le=600)
    breaker_open_s: float = Field(default=10.0, ge=0.1, le=300)  # each time twice as long
    breaker_probes: int = Field(default=5, ge=1, le=1000)  # that must pass, one after the other

    # Workers
    bulk_reserve: float | None = Field(default=None, ge=0, lt=1)  # share of slots that P2, P3 never take
    bulk_reserve_max: float = Field(default=0.25, ge=0, lt=1)  # of an adaptive one (None)
    prefill_tokens: int = Field(default=4096, ge=0, le=10_000_000)  # of P2, P3 prompts at a time; 0: any
    preempt_after_s: float = Field(
        default=0.15, ge=0, le=3600
    )  # a P0 job waits so long before P3, P2 stop; 0: never
    locality_s: float = Field(default=0.1, ge=0, le=60)  # a job is left to the worker that has its prefix
    bypass_n: int = Field(default=16, ge=0, le=10_000)  # a job that does not fit is passed over so often,
    bypass_s: float = Field(default=5.0, ge=0, le=3600)  # or for so long; then room is held for it
    slots: int = Field(default=8, ge=1, le=4096)  # where headway.yaml names none
    coalesce_ms: float = Field(default=20.0, ge=0, le=1000)  # chunks of a worker's jobs
    drain_s: float = Field(default=30.0, ge=0, le=3600)  # after SIGTERM; then handed back

    # Patience with an engine
    engine_connect_s: float = Field(default=5.0, gt=0, le=300)
    engine_first_byte_s: float = Field(default=300.0, gt=0, le=86_400)  # of a stream: queueing and prefill
    engine_between_bytes_s: float = Field(default=120.0, gt=0, le=86_400)  # of a stream that has begun
    engine_answer_s: float = Field(default=600.0, gt=0, le=86_400)  # of an answer that is not streamed
    engine_load_s: float = Field(default=1.0, ge=0.1, le=60)  # between looks at its load
    health_s: float = Field(default=5.0, ge=0.1, le=300)  # between looks at its health; three failures: away

    # Forecasts
    predictor: Literal["learned", "simple"] = "learned"
    learn_outcomes: int = Field(default=10_000, ge=100, le=1_000_000)  # of finished jobs, per pool; no text
    learn_pasts: int = Field(
        default=5_000, ge=1, le=1_000_000
    )  # tenants' templates whose outputs are kept, per pool
    learn_ttl_s: float = Field(default=30 * 86_400.0, ge=60, le=365 * 86_400)  # of both, after the last job
    retrain_s: float = Field(default=21_600.0, ge=0, le=30 * 86_400)  # between trainings; 0: none

    # Batches
    celery_concurrency: int = Field(default=4, ge=1, le=256)  # slices at a time
    slice_lines: int = Field(default=500, ge=1, le=100_000)
    batch_window: int = Field(default=32, ge=1, le=10_000)  # lines of one slice in the queue at a time

    @field_validator("home")
    @classmethod
    def _home_is_absolute(cls, home: Path) -> Path:
        return home.expanduser().absolute()

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(key for part in value.split(",") if (key := part.strip()))
        return value

    @field_validator("bulk_reserve", mode="before")
    @classmethod
    def _adaptive_is_none(cls, value: Any) -> Any:
        return None if value == "adaptive" else value

    @field_validator("redis_url", "stream_url")
    @classmethod
    def _speaks_redis(cls, url: str) -> str:
        try:
            parse(url)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return url

    @field_validator("otlp_endpoint")
    @classmethod
    def _takes_traces(cls, url: str) -> str:
        return traces_url(url) if url else ""

    @field_validator("celery_url", "files_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if not urlsplit(url).scheme:
            raise ValueError("is no URL; it starts with a scheme such as redis://, amqp://, file:// or s3://")
        return url

    @model_validator(mode="after")
    def _intervals_fit(self) -> Self:
        if self.retry_base_s > self.retry_cap_s:
            raise ValueError("HEADWAY_RETRY_BASE_S is larger than HEADWAY_RETRY_CAP_S")
        if self.stream_url != self.redis_url:
            raise ValueError(
                "HEADWAY_STREAM_URL differs from HEADWAY_REDIS_URL: chunks are fenced by the job's own record, so they "
                "are kept in the queue's Redis; leave it unset"
            )
        return self

    @model_validator(mode="after")
    def _celery_and_rq_have_a_transport(self) -> Self:
        if urlsplit(self.celery_url).scheme == "redis+cluster":
            raise ValueError(
                "HEADWAY_CELERY_URL is needed, as Celery has no Redis Cluster transport: "
                "name a single Redis, a Sentinel group or an AMQP broker"
            )
        if KINDS.get(urlsplit(self.chores_url).scheme) not in ("single", "sentinel"):
            raise ValueError(
                "HEADWAY_CHORES_URL is needed, as RQ has no Redis Cluster transport: "
                "name a single Redis or a Sentinel group"
            )
        return self

    @property
    def aging(self) -> Aging:
        return Aging((0.0, self.age_p1_s, self.age_p2_s, self.age_p3_s), self.aged_share)

    @property
    def order(self) -> Order:
        return Order(sjf_weight=self.sjf_weight, aging=self.aging)

    @property
    def limits(self) -> Limits:
        return Limits(
            lease_s=self.lease_s,
            max_errors=self.max_engine_errors,
            max_deaths=self.max_worker_deaths,
            aging=self.aging,
            breaker=self.breaker,
        )

    @property
    def breaker(self) -> Breaker:
        times = {"window_s": self.breaker_window_s, "open_s": self.breaker_open_s}
        return Breaker(self.breaker_share, self.breaker_requests, probes=self.breaker_probes, **times)

    @property
    def passing(self) -> Passing:
        return Passing(bypass_n=self.bypass_n, bypass_s=self.bypass_s, patience_s=self.locality_s)

    @property
    def memory(self) -> Memory:
        return Memory(self.learn_outcomes, self.learn_pasts, self.learn_ttl_s)

    @property
    def redis_is_own(self) -> bool:
        """Whether `headway up` has to start a redis-server, as nobody named one."""
        return "redis_url" not in self.model_fields_set

    @property
    def loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def up_file(self) -> Path:
        return self.home / "up.json"


def _of_chores(redis_url: str, celery_url: str) -> str:
    """RQ's Redis: the queue's, or Celery's where the queue is on a cluster."""
    return celery_url if urlsplit(redis_url).scheme == "redis+cluster" else redis_url


def own_redis_url(home: Path) -> str:
    """Where the redis-server of the `headway up` of this home listens; the usual address if none has run there."""
    try:
        up = orjson.loads((home / "up.json").read_bytes())
        return next(str(part["url"]) for part in up["parts"] if part["kind"] == "redis")
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return DEFAULT_REDIS_URL


def load_settings(**overrides: Any) -> Settings:
    """Environment and defaults, `overrides` first. Raises ConfigError naming every variable that is wrong."""
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise ConfigError(describe(error, prefix=PREFIX)) from None
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(os.environ):
        foreign = name in FOREIGN_VARIABLES or name.startswith(FOREIGN_PREFIXES)
        if name.startswith(PREFIX) and name not in known and not foreign:
            near = difflib.get_close_matches(name.removeprefix(PREFIX).lower(), Settings.model_fields, n=1)
            hint = f"did you mean {PREFIX}{near[0].upper()}? All are" if near else "all are"
            raise ConfigError(f"{name} is not a setting; {hint} in docs/settings.md")
    return settings


def named_variable(name: str) -> str:
    """What a variable holds that `headway.yaml` names; "" if it is not set."""
    return os.environ.get(name, "")


def child_environment(settings: Settings) -> dict[str, str]:
    """This process's environment, and in it whatever was set or decided, for the children of `headway up`."""
    decided = {
        PREFIX + name.upper(): _as_variable(getattr(settings, name)) for name in settings.model_fields_set
    }
    return {**os.environ, "PYTHONUNBUFFERED": "1", PREFIX + "HOME": str(settings.home), **decided}


def _as_variable(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_as_variable(item) for item in value)
    return value.get_secret_value() if isinstance(value, SecretStr) else "" if value is None else str(value)
