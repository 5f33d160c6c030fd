"""Step times of GPU replicas: what physics and measurement say they must be. Measured values: docs/perf_model.md."""

from typing import TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from predictor import perf

H100_FLOPS = {"bf16": 989e12, "fp8": 1979e12}  # data sheet, dense
H100_BYTES_PER_S = 3.35e12


class Step(TypedDict):
    prefill_tokens: int
    prefill_context: int
    decode_sequences: int
    kv_tokens: int


def decode(sequences: int, context: int) -> Step:
    held = sequences * context
    return Step(prefill_tokens=0, prefill_context=0, decode_sequences=sequences, kv_tokens=held)


def prefill(tokens: int, cached: int = 0) -> Step:
    context = perf.mean_context([(cached, tokens)])
    return Step(prefill_tokens=tokens, prefill_context=context, decode_sequences=0, kv_tokens=0)


steps = st.builds(
    Step,
    prefill_tokens=st.integers(0, 40_000),
    prefill_context=st.integers(0, 130_000),
    decode_sequences=st.integers(0, 2048),
    kv_tokens=st.integers(0, 4_000_000),
)
names = st.sampled_from(perf.known())


@given(
    name=names, step=steps, argument=st.sampled_from(sorted(Step.__annotations__)), more=st.integers(1, 5000)
)
def test_a_step_with_more_to_do_never_takes_less_time(
    name: str, step: Step, argument: str, more: int
) -> None:
    times, grown = perf.load(name), Step(**step)
    grown[argument] += more  # type: ignore[literal-required]
    assert times.step_s(**grown) >= times.step_s(**step) >= 0


@given(name=names, tokens=st.integers(1, 40_000))
def test_a_step_with_work_takes_time(name: str, tokens: int) -> None:
    times = perf.load(name)
    assert times.step_s(**prefill(tokens)) > 0
    assert times.step_s(**decode(tokens, 1)) > 0


def test_parameters_are_those_of_the_model_cards() -> None:
    assert perf.MODELS["llama-3.1-8b"].parameters() == pytest.approx(8.03e9, rel=0.001)
    assert perf.MODELS["llama-3.1-70b"].parameters() == pytest.approx(70.55e9, rel=0.001)
    assert perf.MODELS["llama-2-70b"].parameters() == pytest.approx(68.98e9, rel=0.001)


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_no_step_beats_the_data_sheet(weights: str) -> None:
    """A prompt is no faster than its operations at peak rate, a decode no faster than reading weights and KV once."""
    times = perf.load(f"llama-3.1-70b-{weights}@4xh100")
    layers = 70.55e9 - 2 * 128_256 * 8192
    assert times.step_s(**prefill(8192)) > 2 * layers * 8192 / 4 / H100_FLOPS[weights]
    read = layers * perf.WEIGHT_BYTES[weights] + 64 * 4000 * times.replica.kv_bytes_per_token
    assert 1 < times.step_s(**decode(64, 4000)) / (read / 4 / H100_BYTES_PER_S) < 2


@pytest.mark.parametrize(
    ("name", "kv", "sequences", "context", "measured_s"),
    [
        ("llama-3.1-70b-fp8@1xh200", "fp8", 4, 1383, 0.0215),
        ("llama-3.1-70b-fp8@2xh200", "fp8", 4, 1383, 0.0139),
        ("llama-3.1-70b-fp8@4xh200", "fp8", 8, 4610, 0.0103),
        ("llama-3.1-70b-fp8@2xh100", "bf16", 8, 4610, 0.0192),
        ("llama-3.1-70b-fp8@4xh100", "bf16", 4, 1383, 0.0118),
        ("llama-3.1-8b-bf16@1xh100", "bf16", 8, 1280, 0.0074),
    ],
)
def test_decode_steps_are_close_to_what_engines_measured(
    name: str, kv: str, sequences: int, context: int, measured_s: float
) -> None:
    """Time per output token at low concurrency, where hardly any step has a prompt in it."""
    assert perf.load(name, kv=kv).step_s(**decode(sequences, context)) == pytest.approx(measured_s, rel=0.15)


def test_a_prompt_of_several_chunks_costs_the_same_attention_as_in_one() -> None:
    times = perf.load("llama-3.1-70b-bf16@4xh100")
    whole = times.step_s(**prefill(8192))
    chunked = sum(times.step_s(**prefill(2048, cached)) for cached in range(0, 8192, 2048))
    assert whole < chunked < 1.2 * whole


def test_mean_context_weighs_chunks_by_their_tokens() -> None:
    assert perf.mean_context([]) == 0
    assert perf.mean_context([(0, 1000)]) == 500
    assert perf.mean_context([(3000, 1000)]) == 3500
    assert perf.mean_context([(0, 1000), (0, 1000)]) == 500, "two prompts do not attend to each other"
    assert perf.mean_context([(0, 3000), (8000, 1000)]) == (3000 * 1500 + 1000 * 8500) / 4000


def test_what_the_host_adds_is_added_to_each_step_and_sequence() -> None:
    plain = perf.load("llama-3.1-8b-bf16@1xh100")
    slow = perf.FittedStepTimes(plain.replica, host_s=0.001, host_sequence_s=0.00002)
    added = slow.step_s(**decode(100, 500)) - plain.step_s(**decode(100, 500))
    assert added == pytest.approx(0.001 + 100 * 0.00002)


def test_kv_cache_takes_what_weights_leave() -> None:
    """Bytes per token by hand: keys and values x layers x 8 KV heads x 128 x bytes. Capacity: under 64 callers measured
    engines ran 29 sequences of 7,830 tokens at once on two H100 and 45.6 on one H200; the others waited."""
    small, large = (
        perf.load("llama-3.1-8b-bf16@1xh100").replica,
        perf.load("llama-3.1-70b-fp8@2xh100").replica,
    )
    single = perf.load("llama-3.1-70b-fp8@1xh200", kv="fp8").replica
    assert small.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert large.kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert single.kv_bytes_per_token == 2 * 80 * 8 * 128
    assert large.kv_capacity_tokens() == pytest.approx(29 * 7830, rel=0.1)
    assert single.kv_capacity_tokens() == pytest.approx(45.6 * 7830, rel=0.1)
    assert small.kv_capacity_tokens(0.5) < small.kv_capacity_tokens(0.9)


def test_only_replicas_whose_weights_fit_are_known() -> None:
    known = perf.known()
    assert {"llama-3.1-8b-bf16@1xa100", "llama-3.1-70b-fp8@1xh200", "llama-2-70b-bf16@2xa100"} <= set(known)
    assert not [name for name in known if "70b-bf16@1x" in name]
    assert not [name for name in known if "fp8" in name and "a100" in name], "A100 has no fp8"


def test_unknown_name_says_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"no GPU replica 'gpt-9@1xh100'.*llama-3\.1-8b-bf16@1xh100"):
        perf.load("gpt-9@1xh100")


def test_unmeasured_kv_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="not measured on a100"):
        perf.load("llama-3.1-8b-bf16@1xa100", kv="fp8")


def test_a_curve_is_its_function_where_it_was_tabulated_and_goes_on_straight() -> None:
    curve = perf.Curve(lambda n: 3.0 * n + 1)
    for tokens in (
        1,
        perf.EXACT_UP_TO,
        perf.EXACT_UP_TO + 1,
        1000,
        perf.LAST_TOKENS - 1,
        perf.LAST_TOKENS,
        100_000,
    ):
        assert curve(tokens) == pytest.approx(3.0 * tokens + 1)
    assert curve(0) == 0, "no tokens, no time"
