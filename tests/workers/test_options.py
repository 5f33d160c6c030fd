"""What the command line and headway.yaml say of an engine, and the client that is built from it."""

import pytest

from broker.config import Config, ModelConfig
from broker.errors import ConfigError
from broker.settings import Settings
from workers.accounts import Price
from workers.engines.exchange import HttpOptions
from workers.engines.llamacpp import LlamaCppEngine
from workers.engines.openai_http import OpenAIEngine
from workers.options import build_engine, parse

URL = "http://127.0.0.1:9"
NAMED = Config(models=(ModelConfig(pool="small", engine=URL, dialect="tgi", kv_tokens=5),))


@pytest.mark.parametrize(
    ("config", "flags", "dialect"),
    [(Config(), [], "auto"), (NAMED, [], "tgi"), (NAMED, ["--dialect", "vllm"], "vllm")],
)
def test_the_dialect_is_found_out_unless_it_is_named(config: Config, flags: list[str], dialect: str) -> None:
    assert parse(["--pool", "small", "--engine", URL, *flags], config).dialect == dialect


def test_time_limits_and_sizes_reach_the_engines_client() -> None:
    settings = Settings(
        engine_connect_s=1, engine_first_byte_s=2, engine_between_bytes_s=3, engine_answer_s=4
    )
    limits = HttpOptions(connect_s=1, first_byte_s=2, between_bytes_s=3, answer_s=4)
    engine = build_engine(parse(["--pool", "small"], NAMED), settings)
    assert isinstance(engine, OpenAIEngine)
    assert (engine._options, engine._named.kv_tokens) == (limits, 5)
    embedded = build_engine(parse(["--pool", "small"], Config()), settings)
    assert isinstance(embedded, LlamaCppEngine)
    assert embedded._options == limits


PRICED = Config(models=(ModelConfig(pool="small", gpus=2, gpu_hour_usd=2.4),))


@pytest.mark.parametrize(
    ("config", "flags", "price"),
    [
        (PRICED, [], Price(2, 2.4)),
        (PRICED, ["--gpus", "4"], Price(4, 2.4)),
        (PRICED, ["--gpu-hour-usd", "0"], Price(2, 0.0)),
        (NAMED, [], Price(1, 0.0)),
        (Config(), ["--gpus", "8", "--gpu-hour-usd", "1.5"], Price(8, 1.5)),
    ],
)
def test_gpus_and_their_price_are_the_files_unless_the_flags_say_otherwise(
    config: Config, flags: list[str], price: Price
) -> None:
    assert parse(["--pool", "small", "--engine", URL, *flags], config).price == price


@pytest.mark.parametrize("flags", [["--gpus", "0"], ["--gpu-hour-usd", "-1"], ["--gpu-hour-usd", "nan"]])
def test_a_price_that_cannot_be_is_refused(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=flags[0]):
        parse(["--pool", "small", *flags], PRICED)
