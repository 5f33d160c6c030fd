"""What a pair's outcomes teach, and that the file which is written says the same when it is read."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from predictor.features import FEATURES, extract
from predictor.sufficiency import load
from predictor.train.sufficiency import Outcomes, curve, document, fit, folds, unseen

N = 300


def ask(n: int) -> dict[str, object]:
    """Every third prompt is one for the large model."""
    what = "prove the theorem" if n % 3 == 0 else "say hello"
    return {"messages": [{"role": "user", "content": f"please {what} to number{n % 7}"}]}


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    read = [extract(ask(n)) for n in range(N)]
    small = np.array([0.0 if n % 3 == 0 else 1.0 for n in range(N)])
    large = np.ones(N)
    return Outcomes(
        x=np.array([each.values for each in read], float),
        words=[each.words for each in read],
        small=small,
        large=large,
        suffices=(large <= small).astype(float),
        weight=np.ones(N),
    )


def test_prompts_that_were_not_seen_are_told_apart(outcomes: Outcomes) -> None:
    guesses = unseen(outcomes, folds(N))
    assert guesses[outcomes.gain == 1].min() > guesses[outcomes.gain == 0].max()


def test_the_file_says_what_was_learned(outcomes: Outcomes, tmp_path: Path) -> None:
    model = fit(outcomes, version="test")
    path = tmp_path / "sufficiency.json"
    path.write_bytes(orjson.dumps(document(model, sources=[])))
    read = load(path)
    easy, hard = extract(ask(1)), extract(ask(3))
    assert read.probability(easy) > 0.9
    assert read.probability(hard) < 0.1
    assert read.probability(easy) == pytest.approx(model.probability(easy), abs=0.02)


def test_a_third_of_the_calls_keeps_all_of_the_gain(outcomes: Outcomes) -> None:
    model = fit(outcomes, version="test")
    threshold = model.curve.for_quality(1.0)
    chances = [model.probability(extract(ask(n))) for n in range(N)]
    assert sum(chance < threshold for chance in chances) == N // 3


def test_a_curve_never_falls(outcomes: Outcomes) -> None:
    found = curve(np.random.default_rng(1).random(N), outcomes)
    for column in (found.thresholds, found.share_large, found.quality):
        assert list(column) == sorted(column)
    assert found.share_large[0] == 0.0
    assert found.share_large[-1] == pytest.approx(1.0)


def test_sums_over_the_other_lexicon_are_left_out(outcomes: Outcomes) -> None:
    """It is learned anew from time to time, and from answers to the same questions."""
    model = fit(outcomes, version="test")
    for name in ("words_length", "words_tool"):
        assert model.scale[FEATURES.index(name)] == 0.0
