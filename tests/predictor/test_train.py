"""Training learns what is there to learn, and says so when there is nothing."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from broker.errors import ConfigError
from predictor.features import FEATURES, INDEX, extract
from predictor.model_card import read_card
from predictor.train import scores
from predictor.train.__main__ import main
from predictor.train.candidate import load_fitted, train
from predictor.train.fit import guess, split
from predictor.train.plots import Axis, Line, Range, bars, lines, ranges
from predictor.train.report import report
from predictor.train.rows import Row, Rows, read_rows, table
from predictor.train.word_weights import Ridge, folded, word_weights


def traffic(n: int = 1200) -> Rows:
    """Answers are as long as the template's history says, within a factor of 1.5; tools are called where one fits."""
    chance = np.random.default_rng(1)
    plain = list(extract({"prompt": "word " * 30}).values)
    rows = []
    for _ in range(n):
        usual, fits = float(chance.choice([20.0, 200.0, 900.0])), float(chance.random() < 0.5)
        values = list(plain)
        for name, value in (("template_q50", usual), ("template_mean_log", math.log1p(usual))):
            values[INDEX[name]] = value
        values[INDEX["template_count"]] = 50.0
        values[INDEX["tools"]], values[INDEX["tool_overlap"]] = 1.0, fits
        output = usual * math.exp(chance.uniform(-0.4, 0.4))
        rows.append(Row(tuple(values), round(output), fits, kind="fact"))
    return table(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    train(traffic(), made)
    return made


def test_candidate_learns_lengths_and_tools_and_its_card_says_how_well(folder: Path) -> None:
    found = read_card(folder).scores
    assert found["tau"] > 0.6
    assert found["mae"] < 0.4 * found["mae_of_median"]
    assert 0.8 < found["p90_cover"] < 1.0
    assert found["tool_auroc"] > 0.99


def test_models_read_back_say_what_they_said(folder: Path) -> None:
    card, fitted = load_fitted(folder)
    rows = traffic(60)
    found = guess(fitted, rows)
    assert card.files.keys() == {"p50", "p90", "mean", "tool"}
    assert np.all(found.p50 <= found.p90)
    assert scores.tau(rows.output, found.p50) > 0.6


def test_what_the_files_do_not_teach_is_taken_over(folder: Path, tmp_path: Path) -> None:
    rows = traffic(400)
    card = train(replace(rows, tool=np.full(len(rows), np.nan)), tmp_path, base=folder)
    assert card.files["tool"] == "tool.txt"
    assert (tmp_path / "tool.txt").read_bytes() == (folder / "tool.txt").read_bytes()
    assert (tmp_path / "p50.txt").read_bytes() != (folder / "p50.txt").read_bytes()


def test_too_few_rows_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too little"):
        train(traffic(50), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_rows_are_read_from_features_or_documents(tmp_path: Path) -> None:
    document = {"messages": [{"role": "user", "content": "Translate: bread"}]}
    file = tmp_path / "rows.jsonl"
    plain = {
        "features": [0.5] * len(FEATURES),
        "output_tokens": 7,
        "tool_called": True,
        "prompt_type": "code",
    }
    file.write_bytes(
        orjson.dumps(plain) + b"\n\n" + orjson.dumps({"document": document, "output_tokens": 3}) + b"\n"
    )
    rows = read_rows([file])
    assert rows.output.tolist() == [7, 3]
    assert rows.kinds.tolist() == ["code", "translation"]
    assert rows.tool[0] == 1
    assert math.isnan(rows.tool[1])
    assert rows.x[1].tolist() == list(extract(document).values)


@pytest.mark.parametrize(
    "line", ["{", "3", '{"features": [1, 2]}', '{"output_tokens": 3}', '{"document": 4}']
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_rows([file])


def test_split_never_parts_a_group() -> None:
    groups = np.array([f"talk {at % 40}" for at in range(400)])
    parts = split(groups)
    kept = [set(groups[mask]) for mask in (parts.train, parts.calibrate, parts.test)]
    assert sum(map(len, kept)) == len(set.union(*kept)) == 40


def test_scores_of_hand_made_forecasts() -> None:
    actual = np.array([100.0, 100.0, 100.0, 100.0])
    assert scores.within(actual, np.array([80.0, 120.0, 79.0, 121.0])) == 0.5
    assert scores.cover(actual, np.array([99.0, 100.0, 101.0, 200.0])) == 0.75
    assert scores.bias(actual, np.array([110.0] * 4)) == pytest.approx(0.1)
    assert scores.sum_error(actual, np.array([90.0] * 4)) == pytest.approx(0.1)
    assert scores.tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == pytest.approx(1 / 3)
    assert scores.tau(actual, actual) == 0.0
    assert scores.auroc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="both kinds"):
        scores.auroc(np.ones(3), np.ones(3))


def test_words_get_the_weight_that_they_carry_and_rare_ones_none() -> None:
    prompts = [frozenset([b"essay", b"the"]), frozenset([b"name", b"the"])] * 50 + [frozenset([b"once"])]
    target = np.array([2.0, -2.0] * 50 + [9.0])
    weights = word_weights(prompts, target, ridge=Ridge(damp=1.0))
    assert weights[b"essay"] > 1 > -1 > weights[b"name"]
    assert b"once" not in weights
    assert word_weights([], np.zeros(0)) == {}


def test_folded_scores_have_not_seen_their_own_group() -> None:
    """Each group's word occurs nowhere else: weights that have not seen the group know nothing of it."""
    prompts = [frozenset([b"group %s" % bytes([97 + at // 5])]) for at in range(50)]
    groups = np.array([str(at // 5) for at in range(50)])
    assert not folded(prompts, np.arange(50.0), groups=groups).any()


def test_page_shows_scores_and_plots_of_wellformed_svg(folder: Path) -> None:
    card, fitted = load_fitted(folder)
    page = report(card, fitted, rows=traffic(300))
    assert page.count("<svg") == 5
    for title in ("Calibration", "Residuals by prompt type", "Features", "Tool calls"):
        assert title in page
    for svg in page.split("<svg")[1:]:
        ET.fromstring("<svg" + svg.partition("</svg>")[0] + "</svg>")


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 565.1), (0.5, 1.0), (0.0, 0.0134), (0.0, 4.0), (3.0, 70_000.0)]
)
def test_ticks_are_few_round_and_inside_of_the_axis(low: float, high: float) -> None:
    ticks = Axis(low, high, 0.0, 100.0).ticks()
    assert 2 <= len(ticks) <= 8
    assert low - 1e-9 <= ticks[0] < ticks[-1] <= high + 1e-9
    assert all(len(f"{tick:.9g}".replace(".", "").strip("0")) <= 3 for tick in ticks)


def test_what_is_beyond_an_axis_is_put_at_its_edge() -> None:
    axis = Axis(0.5, 1.0, 200.0, 0.0)
    assert (axis.place(0.1), axis.place(0.75), axis.place(7.0)) == (200.0, 100.0, 0.0)


def test_plots_take_nothing_and_names_with_marks() -> None:
    for svg in (
        lines([], across="a", up="b"),
        bars([]),
        ranges([Range("<&>", -1.0, 2.0, 99.0)], span=(0.0, 4.0), unit="×"),
        lines([Line("<&>", [(0.0, 0.0)])], across="a", up="b"),
    ):
        ET.fromstring(svg)


def test_command_trains_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, file = traffic(400), tmp_path / "rows.jsonl"
    with file.open("wb") as out:
        for x, output in zip(rows.x.tolist(), rows.output.tolist(), strict=True):
            out.write(orjson.dumps({"features": x, "output_tokens": output}) + b"\n")
    into, page = tmp_path / "into", tmp_path / "page.html"
    assert main(["train", str(file), "--into", str(into)]) == 0
    assert main(["report", str(file), "--models", str(into), "--page", str(page)]) == 0
    assert "<svg" in page.read_text("utf-8")
    assert "tau" in capsys.readouterr().out
    assert main(["train", str(tmp_path / "none"), "--into", str(into)]) == 2
    assert "cannot be read" in capsys.readouterr().err
