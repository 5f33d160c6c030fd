"""What a pool's outcomes teach beside its timing: drift, and a P90 that covers nine in ten whatever the models say."""

import math
import random
from dataclasses import replace

import pytest

from broker.learning import Entry, Outcome
from predictor.estimator import Speed
from predictor.features import FEATURES, INDEX, VERSION, extract
from predictor.learned import shifted
from predictor.length import Lengths
from predictor.lessons import MOST_SHIFT, Lessons, moved, read_lessons
from predictor.timing import Timing

PLAIN = Outcome(
    "key", (0.0,) * len(FEATURES), VERSION, "chat", 10, 0, 100, 2.0, 1.0, forecast_tokens=50, forecast_p90=200
)
START = Lessons(Timing.start(Speed()))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.6])
def test_p90_comes_to_cover_nine_in_ten_wherever_the_models_put_it(ratio: float) -> None:
    """Outputs are lognormal with a tenth of them above 200; the models say 200 times `ratio`."""
    chance, shift, covered = random.Random(4), 0.0, list[bool]()
    for _ in range(4000):
        output = round(200 * chance.lognormvariate(-1.2816 * 0.5, 0.5))
        foretold = round(200 * ratio * math.exp(shift))
        covered.append(output <= foretold)
        shift = moved(shift, replace(PLAIN, output_tokens=output, forecast_p90=foretold))
    assert sum(covered[-2000:]) / 2000 == pytest.approx(0.9, abs=0.02)


def test_a_limit_of_the_caller_and_unknown_forecasts_teach_nothing() -> None:
    limited = list(PLAIN.features)
    limited[INDEX["limit_tokens"]] = 200.0
    assert moved(0.3, replace(PLAIN, features=tuple(limited))) == 0.3
    assert moved(0.3, replace(PLAIN, forecast_p90=0)) == 0.3
    assert moved(0.3, PLAIN) != 0.3


def test_the_correction_is_bounded() -> None:
    shift = 0.0
    for _ in range(1000):
        shift = moved(shift, replace(PLAIN, output_tokens=10_000))
    assert shift == MOST_SHIFT


def test_a_corrected_p90_stays_between_p50_and_the_callers_limit() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    free, limited = extract(body), extract(body | {"max_tokens": 120})
    assert shifted(Lengths(50, 100, 60), free, shift=0.5).p90 == pytest.approx(100 * math.exp(0.5))
    assert shifted(Lengths(50, 100, 60), free, shift=-1.0).p90 == 50
    assert shifted(Lengths(50, 100, 60), limited, shift=0.5).p90 == 120
    assert shifted(Lengths(50, 100, 60), free, shift=0.0).p90 == 100


def test_drift_is_how_far_forecasts_were_off() -> None:
    lessons = START
    for number in range(100):
        lessons = lessons.learn(Entry(f"{number}-0", PLAIN))
    assert lessons.drift.run == pytest.approx(math.log(2))
    assert lessons.drift.output == pytest.approx(math.log(2))
    assert lessons.after == "99-0"
    assert lessons.timing.samples == 100


def test_lessons_come_back_from_redis_as_they_went() -> None:
    lessons = START.learn(Entry("7-0", PLAIN))
    assert read_lessons(lessons.dump(), speed=Speed()) == lessons


@pytest.mark.parametrize(
    "document", [None, b"", b"{", b"{}", b"[]", b'{"timing": {}, "after": "1", "drift": {}}']
)
def test_what_cannot_be_read_means_a_new_beginning(document: bytes | None) -> None:
    assert read_lessons(document, speed=Speed()) == START
