"""The forecast that learns: it rests on the models, falls back without them, and is never in the middle of a reload."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from predictor import learned
from predictor.booster import ModelUnfit
from predictor.estimator import SimpleEstimator, Speed
from predictor.features import Features, Reader, extract
from predictor.habits import past_key
from predictor.history import template_key
from predictor.learned import Breaker, LearnedEstimator
from predictor.model_set import ModelSet, open_models
from predictor.timing import Sample, Timing
from tests.predictor.small_models import folder_of

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        name: folder_of(root / name, tokens=n, version=name) for name, n in (("short", 40.0), ("long", 900.0))
    }


@pytest.fixture
def estimator(folders: dict[str, Path]) -> LearnedEstimator:
    return LearnedEstimator(open_models(folders["short"]), speed_of=lambda _: Speed(0.001, 0.01))


def test_output_room_and_time_come_from_models_and_timing(estimator: LearnedEstimator) -> None:
    found = estimator.forecast("small", CHAT)
    assert found.output_tokens == pytest.approx(40, rel=0.15)
    assert found.kv_tokens == pytest.approx(found.prompt_tokens + 80, rel=0.15)
    assert found.run_s == pytest.approx(found.output_tokens * 0.01 + found.prompt_tokens * 0.001, abs=0.05)
    assert found.tool_call == 0.0


class TenAWord:
    """A pool's own count: ten tokens a word."""

    def tokens(self, text: str, made: object) -> float:
        return 10.0 * len(text.split())


def test_a_pool_with_its_own_tokenizer_counts_with_it_and_others_do_not(estimator: LearnedEstimator) -> None:
    document = {"messages": [{"role": "user", "content": "word " * 100}]}
    estimator.readers = {"counted": Reader(TenAWord())}
    assert estimator.forecast("counted", document).prompt_tokens == pytest.approx(1000, rel=0.05)
    assert estimator.forecast("other", document).prompt_tokens == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize(
    "more", [{}, {"max_tokens": 7}, {"tools": [{"function": {"name": "colour_of_sky"}}]}]
)
def test_features_that_were_read_before_give_the_same_forecast_and_are_not_read_again(
    estimator: LearnedEstimator, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    document = CHAT | more
    key = past_key("default", template_key(document))
    estimator.habits.put("small", {key: [30.0, 50.0], "*": [10.0, 30.0, 50.0]})
    known, plain = extract(document), estimator.forecast("small", document)
    monkeypatch.setattr(learned, "read", None)
    assert estimator.forecast("small", document, features=known) == plain
    assert not estimator.breaker.opened


def test_features_of_another_tokenizer_are_not_believed(estimator: LearnedEstimator) -> None:
    document = {"messages": [{"role": "user", "content": "word " * 100}]}
    estimator.readers = {"counted": Reader(TenAWord())}
    found = estimator.forecast("counted", document, features=extract(document))
    assert found.prompt_tokens == pytest.approx(1000, rel=0.05)


def test_the_callers_limit_is_kept_and_choices_are_counted(estimator: LearnedEstimator) -> None:
    assert estimator.forecast("small", CHAT | {"max_tokens": 7}).output_tokens == 7
    one, three = estimator.forecast("small", CHAT), estimator.forecast("small", CHAT | {"n": 3})
    assert three.output_tokens == pytest.approx(3 * one.output_tokens, rel=0.05)
    assert three.run_s == pytest.approx(one.run_s, rel=0.05)  # side by side


def test_what_a_pool_has_shown_changes_its_forecasts_and_no_others(estimator: LearnedEstimator) -> None:
    before = estimator.forecast("small", CHAT).run_s
    timing = Timing.start(Speed(0.001, 0.01))
    for _ in range(300):
        timing = timing.learn(Sample(20, 40, 4.0, first_s=0.1, estimated_tokens=10))
    estimator.timings["small"] = timing
    assert estimator.forecast("small", CHAT).run_s > 5 * before
    assert estimator.forecast("large", CHAT).run_s == pytest.approx(before)


def test_a_later_turn_is_expected_to_find_its_prefix_cached(estimator: LearnedEstimator) -> None:
    first = {"messages": [{"role": "user", "content": "word " * 2000}]}
    later = {
        "messages": [{"role": "user", "content": "word " * 2000}, {"role": "assistant", "content": "Yes."}]
    }
    timing = Timing.start(Speed(0.001, 0.01))
    for _ in range(300):
        timing = timing.learn(Sample(1000, 40, 1.4, cached_tokens=900, first_s=0.1, known=True))
    estimator.timings["small"] = timing
    assert estimator.forecast("small", later).run_s < 0.8 * estimator.forecast("small", first).run_s


def test_without_models_the_simple_forecast_serves() -> None:
    simple = SimpleEstimator()
    assert LearnedEstimator(simple=simple).forecast("small", CHAT) == simple.forecast("small", CHAT)


def test_embeddings_write_nothing(estimator: LearnedEstimator) -> None:
    assert estimator.forecast("small", {"input": "some text"}).output_tokens == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": [None, 3, {"role": 5}]},
        {"prompt": [[1, 2], [3]]},
        {"messages": [{"content": "\ud800"}]},
    ],
)
def test_no_body_makes_it_fail(estimator: LearnedEstimator, body: Mapping[str, Any]) -> None:
    assert estimator.forecast("small", body).prompt_tokens >= 1
    assert estimator.breaker.opened == 0


def test_a_model_that_fails_is_left_alone_and_its_words_are_not_logged(
    estimator: LearnedEstimator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def fail(_: ModelSet, row: object, features: Features) -> None:
        asked.append(features)
        raise ValueError("Why is the sky blue?")

    monkeypatch.setattr(ModelSet, "lengths", fail)
    simple = SimpleEstimator().forecast("small", CHAT)
    assert [estimator.forecast("small", CHAT).output_tokens for _ in range(3)] == [simple.output_tokens] * 3
    assert len(asked) == 1
    assert "forecasting failed (ValueError)" in caplog.text
    assert "sky" not in caplog.text


def test_a_breaker_opens_at_a_slow_median_and_closes_after_its_rest() -> None:
    breaker = Breaker(slow_s=0.001, rest_s=30.0)
    for _ in range(learned.WINDOW):
        breaker.took(0.0002, now=0.0)
    for _ in range(learned.WINDOW // 2):
        breaker.took(0.5, now=0.0)  # a pause is no trend
    assert not breaker.is_open(now=0.0)
    breaker.took(0.5, now=1.0)
    assert breaker.is_open(now=1.0)
    assert breaker.is_open(now=30.9)
    assert not breaker.is_open(now=31.1)
    for _ in range(learned.WINDOW - 1):
        breaker.took(0.5, now=32.0)
    assert not breaker.is_open(now=32.0)  # it starts counting afresh


def test_a_breaker_says_why(caplog: pytest.LogCaptureFixture) -> None:
    Breaker().failed(ModelUnfit("p50.txt: a row of 3 features"), now=0.0)
    assert "p50.txt: a row of 3 features" in caplog.text


def test_a_past_is_used_as_soon_as_it_is_known(estimator: LearnedEstimator) -> None:
    key = past_key("acme", template_key(CHAT))
    first = estimator.foresee("small", CHAT, tenant="acme")
    assert first is not None
    assert first.past_key == key
    assert first.features["template_count"] == 0
    assert estimator.habits.asked() == {"small": [key, "*"]}
    assert estimator.habits.asked() == {}
    estimator.habits.put("small", {key: [30.0, 50.0], "*": [10.0, 30.0, 50.0]})
    again = estimator.foresee("small", CHAT, tenant="acme")
    other = estimator.foresee("small", CHAT, tenant="umbrella")
    assert again is not None
    assert other is not None
    assert again.features["template_count"] == 2
    assert again.features["pool_count"] == 3
    assert other.features["template_count"] == 0


def test_a_reload_under_concurrent_forecasts_drops_none_and_mixes_none(
    estimator: LearnedEstimator, folders: dict[str, Path]
) -> None:
    """Every forecast is of one set of models: its P50 and P90 belong together."""
    stop, wrong, counts = threading.Event(), list[object](), [0] * 4

    def ask(number: int) -> None:
        prompt = extract(CHAT).prompt_tokens
        while not stop.is_set():
            found = estimator.forecast("small", CHAT)
            counts[number] += 1
            if (
                abs((found.kv_tokens - prompt) / found.output_tokens - 2) > 0.3
                or not 30 < found.output_tokens < 1100
            ):
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        estimator.models = open_models(folders["long" if turn % 2 == 0 else "short"])
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert min(counts) > 0
    assert estimator.breaker.opened == 0 or min(counts) > learned.WINDOW
