"""What the command line and headway.yaml say of an engine, and the client that is built from it."""

import pytest

from broker.config import Config, ModelConfig
from broker.settings import Settings
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
