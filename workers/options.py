"""The engine worker's command line, over headway.yaml, and the engine that it names."""

import argparse
import logging
import math
from dataclasses import dataclass
from typing import get_args

from broker.config import EMBEDDED, MAX_SPEED, MIN_SPEED, Config, Dialect, ModelConfig, check_engine
from broker.errors import ConfigError, InvalidJob
from broker.job import POOL_NAME, ServiceClass
from broker.settings import Settings
from workers.accounts import FREE, Price
from workers.engine import Engine
from workers.engines.exchange import HttpOptions
from workers.engines.llamacpp import LlamaCppEngine
from workers.engines.openai_http import Named, OpenAIEngine

log = logging.getLogger("headway.worker")


@dataclass(frozen=True, slots=True)
class Options:
    """One engine for one pool or several; None means: as headway.yaml or the engine says.

    `queues`: of each pool, the first pool's first. `shard`: the worker's home among them; None: by its id.
    """

    pool: str
    queues: tuple[tuple[str, ...], ...]
    engine: str
    dialect: Dialect
    model: str | None
    slots: int | None
    api_key: str | None = None
    kv_tokens: int | None = None
    speed: float = 1.0  # of a usual worker
    price: Price = FREE
    shard: int | None = None
    classes: frozenset[ServiceClass] = frozenset(ServiceClass)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headway worker",
        description="Pull jobs of a pool, or of several, for one engine.",
        epilog="HEADWAY_REDIS_URL names the queue's Redis; without it, that of `headway up` in HEADWAY_HOME.",
    )
    parser.add_argument(
        "--pool",
        required=True,
        action="append",
        help="the pool to serve, as in headway.yaml; more of them, by comma or again, are served when it has no work",
    )
    parser.add_argument("--shard", type=int, help="of the (first) pool, to serve first (default: by chance)")
    parser.add_argument(
        "--classes", default="P0,P1,P2,P3", help="that are taken, such as P2,P3 (default: all)"
    )
    parser.add_argument(
        "--engine", help="http://HOST:PORT of an OpenAI-compatible server, or llamacpp (embedded)"
    )
    parser.add_argument(
        "--dialect", choices=get_args(Dialect), help="what the server is (default: found out)"
    )
    parser.add_argument("--model", help="the engine's name for the model (default: the first it lists)")
    parser.add_argument("--slots", type=int, help="concurrent requests (default: what the engine says)")
    parser.add_argument(
        "--kv-tokens", type=int, help="size of the engine's KV cache (default: what the engine says)"
    )
    parser.add_argument(
        "--speed", type=float, help="of this GPU, 1.0 is usual: jobs prefer faster ones that have room"
    )
    parser.add_argument("--gpus", type=int, help="that the engine runs on, for the books (default: 1)")
    parser.add_argument(
        "--gpu-hour-usd", type=float, help="dollars for an hour of one GPU (default: no money is booked)"
    )
    return parser


def parse(argv: list[str], config: Config) -> Options:
    """Command line over headway.yaml. Exits with usage on a wrong flag; raises ConfigError on a wrong value."""
    args = _parser().parse_args(argv)
    pools = _pools(args.pool)
    queues = tuple(config.shards.queues(pool) for pool in pools)
    if args.shard is not None and not 0 <= args.shard < len(queues[0]):
        raise ConfigError(f"--shard {args.shard}: pool {pools[0]} has {len(queues[0])} in headway.yaml")
    _check(args)
    known = config.find(pools[0])
    engine = (known.engine if known else EMBEDDED) if args.engine is None else args.engine
    try:
        engine = check_engine(engine)
    except ValueError as error:
        raise ConfigError(f"--engine {engine!r}: {error}") from None
    from_file = known if known is not None and known.engine == engine else None
    return Options(
        pool=pools[0],
        queues=queues,
        shard=args.shard,
        classes=_classes(args.classes),
        engine=engine,
        dialect=args.dialect or (from_file.dialect if from_file else "auto"),
        model=args.model or (from_file.model if from_file else None),
        slots=args.slots or (from_file.slots if from_file else None),
        kv_tokens=args.kv_tokens or (from_file.kv_tokens if from_file else None),
        speed=args.speed or (from_file.speed if from_file else 1.0),
        price=_price(args, known),
        api_key=from_file.api_key.get_secret_value() if from_file and from_file.api_key else None,
    )


def _check(args: argparse.Namespace) -> None:
    """Raises ConfigError."""
    if args.slots is not None and not 0 < args.slots <= 4096:
        raise ConfigError(f"--slots {args.slots}: must be between 1 and 4096")
    if args.kv_tokens is not None and args.kv_tokens < 1:
        raise ConfigError(f"--kv-tokens {args.kv_tokens}: must be at least 1")
    if args.speed is not None and not MIN_SPEED <= args.speed <= MAX_SPEED:
        raise ConfigError(f"--speed {args.speed}: must be between {MIN_SPEED} and {MAX_SPEED}")
    if args.gpus is not None and args.gpus < 1:
        raise ConfigError(f"--gpus {args.gpus}: must be at least 1")
    if args.gpu_hour_usd is not None and not 0 <= args.gpu_hour_usd < math.inf:
        raise ConfigError(f"--gpu-hour-usd {args.gpu_hour_usd}: must be 0 or more")


def _price(args: argparse.Namespace, known: ModelConfig | None) -> Price:
    """`known`: the pool in headway.yaml, whatever engine it names there."""
    usual = Price(known.gpus, known.gpu_hour_usd) if known else FREE
    return Price(
        args.gpus or usual.gpus, usual.gpu_hour_usd if args.gpu_hour_usd is None else args.gpu_hour_usd
    )


def _pools(given: list[str]) -> list[str]:
    """Each once, in order. Raises ConfigError."""
    pools = list(dict.fromkeys(name for text in given for name in text.split(",")))
    for pool in pools:
        if not POOL_NAME.fullmatch(pool):
            raise ConfigError(f"--pool {pool!r}: a name is up to 64 letters, digits, '.', '_' and '-'")
    return pools


def _classes(text: str) -> frozenset[ServiceClass]:
    """Raises ConfigError."""
    try:
        return frozenset(ServiceClass.parse(name) for name in text.split(","))
    except InvalidJob as error:
        raise ConfigError(f"--classes: {error}") from None


def warn_of_unknown_pool(pool: str, config: Config) -> None:
    """Allowed, for any worker may announce a pool; but mostly it is a slip."""
    names = [model.pool for model in config.models]
    if pool not in names:
        log.warning(
            "pool %s is not in headway.yaml here (it names %s): only requests whose `model` is %s come to it, and "
            "its GPUs and their price are what --gpus and --gpu-hour-usd say",
            pool,
            ", ".join(names),
            pool,
        )


def build_engine(options: Options, settings: Settings) -> Engine:
    http = HttpOptions(
        api_key=options.api_key,
        connect_s=settings.engine_connect_s,
        first_byte_s=settings.engine_first_byte_s,
        between_bytes_s=settings.engine_between_bytes_s,
        answer_s=settings.engine_answer_s,
    )
    if options.engine == EMBEDDED:
        return LlamaCppEngine(slots=options.slots or settings.slots, options=http)
    return OpenAIEngine(
        options.engine,
        dialect=options.dialect,
        named=Named(options.model, options.slots, options.kv_tokens),
        options=http,
    )
