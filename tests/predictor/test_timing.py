"""The timing model against an engine whose law is known: five coefficients, noise, stalls, and a change of engine."""

import random

import orjson
import pytest

from broker.config import ModelConfig
from predictor.estimator import Speed
from predictor.timing import Sample, Timing, error, read_timing, speed_of

START = Timing.start(Speed(0.0015, 0.02))


def first_s(prompt: int, beside: int, *, slower: float = 1.0) -> float:
    return slower * (0.05 + prompt * 0.0002 + beside * 0.01)


def run_s(prompt: int, output: int, beside: int, *, slower: float = 1.0) -> float:
    decode = (output - 1) * (0.005 + 0.0015 * beside)
    return first_s(prompt, beside, slower=slower) + slower * decode


def served(
    n: int, *, slower: float = 1.0, streamed: float = 0.6, stalls: float = 0.05, seed: int = 1
) -> list[Sample]:
    chance, found = random.Random(seed), list[Sample]()
    for _ in range(n):
        prompt, output, beside = chance.choice((100, 500, 3000)), chance.randint(5, 400), chance.randint(0, 7)
        noise = chance.lognormvariate(0, 0.1) * (10 if chance.random() < stalls else 1)
        known = chance.random() < streamed
        first = first_s(prompt, beside, slower=slower) * noise if known else None
        run = run_s(prompt, output, beside, slower=slower) * noise
        found.append(Sample(prompt, output, run, first_s=first, beside=beside))
    return found


def taught(samples: list[Sample], timing: Timing = START) -> Timing:
    for sample in samples:
        timing = timing.learn(sample)
    return timing


def typical_error(timing: Timing, *, slower: float = 1.0) -> float:
    """Median relative error over requests of all sizes, at the load that the model takes to be usual."""
    cases = [(p, o) for p in (100, 500, 3000) for o in (20, 100, 400)]
    beside = timing.beside
    errors = []
    for prompt, output in cases:
        right = slower * (0.05 + prompt * 2e-4 + beside * 0.01 + output * (0.005 + 0.0015 * beside))
        errors.append(abs(timing.run_s(prompt, output) / right - 1))
    return sorted(errors)[len(errors) // 2]


def test_at_first_it_is_the_engines_constants() -> None:
    assert START.run_s(1000, 100) == pytest.approx(1.5 + 2.0, abs=0.05)


def test_it_learns_an_engines_law_in_spite_of_stalls() -> None:
    assert typical_error(START) > 0.5
    assert typical_error(taught(served(200))) < 0.15
    assert typical_error(taught(served(2000))) < 0.05


def test_it_learns_also_where_no_first_token_is_seen() -> None:
    assert typical_error(taught(served(2000, streamed=0.0))) < 0.1


def test_it_follows_an_engine_that_becomes_twice_as_slow() -> None:
    before = taught(served(1000))
    assert typical_error(taught(served(600, slower=2.0, seed=2), before), slower=2.0) < 0.1


def test_it_follows_also_where_prompts_tell_nothing_of_prefill() -> None:
    """All of a prompt is cached, so that one coefficient is never seen; the others are not held back by it."""
    chance, timing = random.Random(5), START
    for second_s in (0.1, 0.03):
        for _ in range(300):
            output = chance.randint(10, 60)
            run = (0.1 + output * second_s) * chance.lognormvariate(0, 0.2)
            timing = timing.learn(Sample(40, output, run, cached_tokens=40, beside=3))
        assert timing.run_s(40, 50, cached_tokens=40) == pytest.approx(0.1 + 50 * second_s, rel=0.15)


def test_one_stalled_request_hardly_moves_it() -> None:
    before = taught(served(1000))
    after = before.learn(Sample(500, 100, 3600.0, beside=2))
    assert after.run_s(500, 100) == pytest.approx(before.run_s(500, 100), rel=0.1)


@pytest.mark.parametrize(
    "sample",
    [
        Sample(10, 10, 0.0),
        Sample(10, 10, -1.0),
        Sample(10, 10, float("nan")),
        Sample(10, 10, float("inf")),
        Sample(10, 10, 1.0, first_s=2.0),
        Sample(-1, 10, 1.0),
    ],
)
def test_what_cannot_be_changes_nothing(sample: Sample) -> None:
    assert START.learn(sample) is START


def test_long_runs_of_one_size_neither_wind_it_up_nor_make_it_negative() -> None:
    timing = taught([Sample(500, 100, 1.0, first_s=0.2) for _ in range(5000)])
    assert timing.run_s(500, 100) == pytest.approx(1.0, rel=0.02)
    assert all(value >= 0 for value in timing.seconds.theta)
    assert timing.run_s(8000, 2000) > 0
    assert taught(served(300), timing).run_s(500, 100) < 3


def test_cached_tokens_are_expected_where_turns_have_had_them() -> None:
    later = [Sample(1000, 10, 1.0, cached_tokens=800, known=True) for _ in range(200)]
    timing = taught([*later, *(Sample(1000, 10, 1.0) for _ in range(200))])
    assert timing.cached(1000, known=True) == pytest.approx(800, rel=0.01)
    assert timing.cached(1000, known=False) == 0
    assert timing.run_s(1000, 10, cached_tokens=800) < timing.run_s(1000, 10)


def test_the_tokens_of_a_chat_template_are_told_from_those_of_the_text() -> None:
    short = [Sample(37, 10, 1.0, estimated_tokens=n) for n in (10, 11, 12)] * 100
    timing = taught(short)
    assert timing.prompt_tokens(11) == pytest.approx(37, rel=0.05)
    assert timing.prompt_tokens(8000) < 12_000  # short prompts tell nothing of long ones
    chance, both = random.Random(3), list[Sample]()
    for _ in range(400):
        estimated = chance.choice((10, 200, 4000))
        both.append(Sample(round(26 + 1.25 * estimated), 10, 1.0, estimated_tokens=estimated))
    timing = taught(both)
    assert [timing.prompt_tokens(n) for n in (10, 8000)] == [
        pytest.approx(38.5, rel=0.1),
        pytest.approx(10_026, rel=0.05),
    ]


def test_it_comes_back_from_redis_as_it_went() -> None:
    timing = taught(served(50))
    assert read_timing(orjson.loads(orjson.dumps(timing.document()))) == timing


@pytest.mark.parametrize("theta", [[1.0], [1.0, 2.0, 3.0, 4.0, float("nan")], "nothing", None])
def test_a_document_that_is_none_is_refused(theta: object) -> None:
    document = START.document()
    with pytest.raises((TypeError, ValueError)):
        read_timing(document | {"seconds": document["seconds"] | {"theta": theta}})
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_timing(document | {"beside": theta})


def test_an_error_is_a_ratio_and_has_no_side() -> None:
    assert error(2.0, 1.0) == error(1.0, 2.0) == pytest.approx(0.6931, abs=1e-4)
    assert error(0.0, 1.0) == error(1e9, 1.0) == 3.0


def test_engines_start_at_their_own_constants() -> None:
    embedded = speed_of(ModelConfig(pool="small"))
    remote = speed_of(ModelConfig(pool="large", engine="http://127.0.0.1:1", dialect="vllm"))
    assert remote.prefill_s_per_token < embedded.prefill_s_per_token
    assert speed_of(None) == Speed()
