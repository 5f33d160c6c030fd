"""Trains the models that ship, from public data sets whose licence allows it and from own runs, into predictor/models/.

python benchmarks/predictor_train.py --runs runs.jsonl     # see predictor_runs.py
"""

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson
import predictor_shipped as shipped
from predictor_cases import by_group

from predictor.features import INDEX
from predictor.lexicon import Weights
from predictor.model_card import Card, Source
from predictor.train import scores
from predictor.train.fit import fit_lengths, fit_tool, judged
from predictor.train.rows import Rows, table
from predictor.train.save import save
from predictor.train.word_weights import Words, folded, word_weights

ROOT = Path(__file__).resolve().parents[1]
SMALLEST_WEIGHT = 0.02  # of a word: what is smaller is left out of the file


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--runs", type=Path, required=True, help="runs of the embedded engine (predictor_runs.py)"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "predictor" / "models")
    options = parser.parse_args()
    options.into.mkdir(exist_ok=True)
    lengths, length_weights, sources = length_rows(options.runs)
    tools, tool_weights, tool_sources = tool_rows()
    parts = by_group(lengths)
    fitted = fit_lengths(lengths, parts, anchored=(1.0,))
    found = judged(fitted, lengths.take(parts.test))
    tool_parts = by_group(tools)
    tool = fit_tool(tools, tool_parts)
    test = tools.take(tool_parts.test)
    found["tool_auroc"] = scores.auroc(test.tool, np.asarray(tool.predict(test.x, num_threads=1)))
    card = Card(
        version=f"shipped-{datetime.now(UTC):%Y%m%d}",
        files={name: f"{name}.txt" for name in (*fitted.models, "tool")},
        calibration=fitted.calibration,
        trained_on=(*sources, *tool_sources),
        scores=found,
    )
    save(options.into, card, models={**fitted.models, "tool": tool})
    lexicon = {"length": _text(length_weights), "tool": _text(tool_weights)}
    (options.into / "lexicon.json").write_bytes(orjson.dumps(lexicon) + b"\n")
    print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())


def length_rows(runs: Path) -> tuple[Rows, Weights, list[Source]]:
    """Rows of all sources, the feature `words_length` filled by weights that have not seen their prompt."""
    all_of = [
        shipped.alpaca(),
        shipped.arena(),
        shipped.conversations(),
        shipped.own_runs(runs),
        shipped.zeroeval(),
        *shipped.traffic(),
    ]
    chance = np.random.default_rng(17)
    rows = table(row for lessons in all_of for row in lessons.rows(chance))
    told = [lesson for lessons in all_of for _, lesson in lessons.found]
    beyond: dict[str, list[float]] = {}
    for lesson in told:
        if lesson.words:
            beyond.setdefault(lesson.prompt, []).append(float(np.log1p(lesson.output)) - lesson.level)
    words = {lesson.prompt: lesson.words for lesson in told if lesson.words}
    prompts = sorted(words)
    target = np.array([np.mean(beyond[prompt]) for prompt in prompts])
    spoken = [words[prompt] for prompt in prompts]
    unseen = dict(zip(prompts, folded(spoken, target, groups=np.array(prompts)), strict=True))
    weights = _kept(word_weights(spoken, target))
    x = rows.x.copy()
    column = [unseen.get(lesson.prompt, np.nan) for lesson in told]
    x[:, INDEX["words_length"]] = column
    return replace(rows, x=x), weights, [lessons.card() for lessons in all_of]


def tool_rows() -> tuple[Rows, Weights, list[Source]]:
    """As `length_rows`, for the tool model."""
    lessons = shipped.tool_lessons()
    rows = table(row for _, found, _ in lessons for row in found)
    spoken: Words = [words for _, _, found in lessons for words in found]
    told = np.flatnonzero([bool(words) for words in spoken])
    heard = [spoken[at] for at in told]
    x = rows.x.copy()
    x[:, INDEX["words_tool"]] = np.nan
    x[told, INDEX["words_tool"]] = folded(heard, rows.tool[told], groups=rows.groups[told])
    return (
        replace(rows, x=x),
        _kept(word_weights(heard, rows.tool[told])),
        [source for source, _, _ in lessons],
    )


def _kept(weights: Weights) -> Weights:
    return {word: weight for word, weight in weights.items() if abs(weight) >= SMALLEST_WEIGHT}


def _text(weights: Weights) -> dict[str, float]:
    return {word.decode(): weight for word, weight in sorted(weights.items())}


if __name__ == "__main__":
    main()
