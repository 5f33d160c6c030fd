"""Will a request end in a tool call? BFCL v4 and MetaTool, each by a model trained on its own training part."""

import gzip
import json
from dataclasses import replace

import numpy as np
from figures import Figure
from predictor_cases import by_group, tool_document
from predictor_rows import DATA, READER, jsonl

from predictor.features import INDEX, Features
from predictor.train import scores
from predictor.train.fit import fit_tool
from predictor.train.rows import Row, table
from predictor.train.word_weights import folded, score, word_weights


def bfcl() -> list[Figure]:
    """Questions with their tools; those whose tools the set does not list (multi-turn, memory, web search) all want a
    call, so counting them would flatter."""
    asked = [r for r in jsonl("bfcl_v4/questions.jsonl.gz") if r["n_functions"]]
    found = [READER.read(tool_document(r)) for r in asked]
    labels = [float(r["tool_call_expected"]) for r in asked]
    return _figures("bfcl_v4", found, labels)


def metatool() -> list[Figure]:
    """Does a question want a tool at all; no tools are offered, so that its words are all there is."""
    with gzip.open(DATA / "metatool" / "Task1.json.gz", "rt", encoding="utf-8") as file:
        asked = json.load(file)
    found = [READER.read({"messages": [{"role": "user", "content": r["query"]}]}) for r in asked]
    return _figures("metatool", found, [float(r["label"] == "positive") for r in asked])


def _figures(name: str, found: list[Features], labels: list[float]) -> list[Figure]:
    """Groups are sets of words: the same question twice is one."""
    keys = [
        " ".join(sorted(word.decode("utf-8", "replace") for word in features.words)) for features in found
    ]
    rows = table(
        Row(features.values, tool=label, group=key)
        for features, label, key in zip(found, labels, keys, strict=True)
    )
    parts = by_group(rows)
    seen = parts.train.nonzero()[0]
    words, column, x = [found[at].words for at in seen], INDEX["words_tool"], rows.x.copy()
    weights = word_weights(words, rows.tool[seen])
    x[:, column] = [score(features.words, weights) for features in found]
    words_only = scores.auroc(rows.tool[parts.test], x[parts.test, column])
    x[seen, column] = folded(words, rows.tool[seen], groups=rows.groups[seen])
    rows = replace(rows, x=x)
    model, test = fit_tool(rows, parts), rows.take(parts.test)
    said = np.asarray(model.predict(test.x, num_threads=1))
    base = max(test.tool.mean(), 1 - test.tool.mean())
    setting = (
        f"{len(test)} questions not trained on; base rate: the commoner answer is right for {base:.3f}, at a "
        f"threshold of 0.5 the model for {np.mean((said > 0.5) == test.tool):.3f}; words alone: {words_only:.3f}; "
        f"ceiling 1 (labels are given by people)"
    )
    return [Figure(f"toolcall.auroc.{name}", round(scores.auroc(test.tool, said), 4), "AUROC", 0.5, setting)]
