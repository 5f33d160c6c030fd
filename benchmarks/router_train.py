"""Trains the classifier that ships, on public outcomes whose licence allows it, and writes `sufficiency.json`.

    python benchmarks/router_train.py predictor/models/sufficiency.json

Sources (Apache-2.0): RouteLLM's GSM8K and MMLU, zeroeval, AlpacaEval's annotations. MT-Bench is kept out: it is the test.
Each set weighs as if it had at most EACH prompts, AlpacaEval three times as much.
"""

import argparse
import json
from pathlib import Path

import router_rows as rows

from predictor.train.sufficiency import Outcomes, document, fit

EACH = 600
CHAT_WEIGHT = 3.0  # of AlpacaEval: what comes to a route is mostly chat
LEAST = 16  # prompts that must have a word: the file stays near 100 KB


def sets() -> dict[str, Outcomes]:
    found = {
        "RouteLLM GSM8K": rows.of_pair(rows.routellm_gsm8k()),
        "RouteLLM MMLU": rows.of_pair(rows.routellm_mmlu()),
        "AlpacaEval": rows.of_many(*rows.chat_scores(), small=rows.SMALL_CHAT, large=rows.LARGE_CHAT),
    }
    for task in ("gsm", "crux", "math-l5"):
        prompts, scores = rows.zero_scores(task)
        found[f"zeroeval {task}"] = rows.of_many(
            prompts, scores, small=rows.SMALL_ZERO, large=rows.LARGE_ZERO
        )
    for outcomes in found.values():
        outcomes.weight[:] = min(1.0, EACH / len(outcomes))
    found["AlpacaEval"].weight[:] = CHAT_WEIGHT
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the classifier of routes that ships.")
    parser.add_argument("out", type=Path)
    found = sets()
    sources = [{"name": name, "licence": "Apache-2.0", "rows": len(each)} for name, each in found.items()]
    model = fit(rows.joined(list(found.values())), version="1", least=LEAST)
    text = json.dumps(document(model, sources=sources), ensure_ascii=False, separators=(",", ":"))
    out: Path = parser.parse_args().out
    out.write_text(text + "\n", encoding="utf-8")
    print(f"{out}: {sum(map(len, found.values()))} prompts, {len(text) >> 10} KB")


if __name__ == "__main__":
    main()
