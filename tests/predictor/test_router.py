"""Routing by prediction: thresholds follow the target, and nothing that is wrong with the model reaches a request."""

from pathlib import Path

import orjson
import pytest

from broker.errors import ConfigError
from broker.route_config import RouteConfig
from predictor.features import FEATURES, extract
from predictor.router import Router, load_or_rule
from predictor.sufficiency import MODEL, ByRule, Curve, Model, load

CURVE = Curve(thresholds=(0.0, 0.6, 0.7, 0.8), share_large=(0.0, 0.1, 0.4, 1.0), quality=(0.0, 0.5, 0.9, 1.0))


def ask(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


def route(**fields: object) -> RouteConfig:
    return RouteConfig.model_validate({"name": "auto", "small": "s", "large": "l", **fields})


@pytest.mark.parametrize(("share", "threshold"), [(0.0, 0.0), (0.1, 0.6), (0.3, 0.6), (0.4, 0.7), (1.0, 1.0)])
def test_no_more_than_the_wanted_share_goes_to_the_large_model(share: float, threshold: float) -> None:
    assert CURVE.for_share(share) == threshold


@pytest.mark.parametrize(("quality", "threshold"), [(0.0, 0.0), (0.4, 0.6), (0.9, 0.7), (1.0, 0.8)])
def test_no_less_than_the_wanted_quality_is_kept(quality: float, threshold: float) -> None:
    assert CURVE.for_quality(quality) == threshold


def test_the_shipped_model_is_of_these_features_and_says_what_it_learned_from() -> None:
    model = load()
    assert len(model.weights) == len(FEATURES)
    sources = orjson.loads(MODEL.read_bytes())["trained_on"]
    assert {source["licence"] for source in sources} == {"Apache-2.0"}


def test_a_hard_question_has_a_lower_chance_than_a_greeting() -> None:
    router = Router()
    hard = "Prove that the sum of the series converges and calculate its limit; how many terms are needed?"
    assert router.look(ask(hard)).p < router.look(ask("Hi, how are you?")).p


def test_chances_are_probabilities_whatever_the_prompt_is_like() -> None:
    router = Router()
    for text in ("", "a" * 200_000, "写一首诗", "\ud800", "0" * 5000, "\n" * 999):
        assert 0.0 <= router.look(ask(text)).p <= 1.0


def test_what_a_judgement_rests_on_is_handed_over_once_read() -> None:
    wanted, features = Router().read(ask("Why is the sky blue?"))
    assert features == extract(ask("Why is the sky blue?"))
    assert wanted == Router().look(ask("Why is the sky blue?"))


@pytest.mark.parametrize(
    "body", [{}, {"messages": 3}, {"messages": [None]}, {"prompt": [1, 2]}, {"input": "x"}]
)
def test_a_body_of_any_shape_is_judged(body: dict[str, object]) -> None:
    assert 0.0 <= Router().look(body).p <= 1.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":"1"}', '{"version":1,"features":[],"words":3}'])
def test_a_file_that_is_no_model_leaves_the_rule(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sufficiency.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        load(path)
    assert isinstance(load_or_rule(path), ByRule)


def test_a_model_of_other_features_is_refused(tmp_path: Path) -> None:
    document = orjson.loads(MODEL.read_bytes())
    document["features"][0] = "something_else"
    path = tmp_path / "sufficiency.json"
    path.write_bytes(orjson.dumps(document))
    with pytest.raises(ConfigError, match="other features"):
        load(path)


def test_a_model_that_fails_counts_as_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Model, __: object) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(Model, "probability", broken)
    wanted, features = Router(load()).read(ask("hi"))
    assert (wanted.p, features) == (0.5, None)


def test_the_rule_prefers_the_large_model_for_maths_and_long_prompts() -> None:
    rule = ByRule()
    greeting, sums = (extract(ask(text)) for text in ("Hello!", "Calculate the probability"))
    assert rule.probability(sums) < rule.probability(greeting)
    long = extract(ask("Hello! " * 9000))
    assert rule.probability(long) < rule.probability(greeting)


def test_what_feedback_taught_replaces_the_threshold_of_a_quality_target_only() -> None:
    router = Router(load())
    assert router.rule(route(target={"quality": 0.9}), learned=0.42).threshold == 0.42
    share = router.rule(route(target={"share_large": 0.3}), learned=0.42).threshold
    assert share == router.sufficiency.curve.for_share(0.3)
