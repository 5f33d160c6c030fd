"""Public outcomes of pairs of models, prompt by prompt. Each set is read where it lies and never copied.

`zeroeval` gsm and RouteLLM's GSM8K are the same questions: no case here learns from another case.
"""

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from predictor.features import Reader
from predictor.train.sufficiency import Outcomes

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
WEAK, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
LLAMA = ("Meta-Llama-3-8B-Instruct", "Meta-Llama-3-70B-Instruct")
# What "small" and "large" mean where a prompt has many models' outcomes: the mean over all pairs tells more than one.
SMALL_ZERO = (
    *("Meta-Llama-3-8B-Instruct", "Meta-Llama-3.1-8B-Instruct", "Qwen2-7B-Instruct", "Qwen2.5-7B-Instruct"),
    *("gemma-2-9b-it", "Mixtral-8x7B-Instruct-v0.1", "Mistral-Nemo-Instruct-2407", "Yi-1.5-9B-Chat"),
    "Phi-3-mini-4k-instruct",
)
LARGE_ZERO = (
    *(
        "Meta-Llama-3-70B-Instruct",
        "Meta-Llama-3.1-70B-Instruct",
        "Qwen2-72B-Instruct",
        "Qwen2.5-72B-Instruct",
    ),
    *(
        "Mistral-Large-2",
        "Athene-70B",
        "gpt-4o-2024-08-06",
        "gpt-4-turbo-2024-04-09",
        "claude-3-5-sonnet-20240620",
    ),
)
SMALL_CHAT = (
    *(
        "zephyr-7b-beta",
        "tulu-2-dpo-7b",
        "llama-2-7b-chat-hf",
        "tulu-2-dpo-13b",
        "llama-2-13b-chat-hf",
        "evo-v2-7b",
    ),
    *(
        "mistral-orpo-beta",
        "deita-7b-v1.0",
        "zephyr-7b-alpha",
        "vicuna-13b",
        "wizardlm-13b",
        "minichat-1.5-3b",
    ),
    "evo-7b",
)
LARGE_CHAT = (
    *("gpt4", "gpt4_1106_preview", "gpt4_0314", "llama-2-70b-chat-hf", "tulu-2-dpo-70b", "Yi-34B-Chat"),
    *("mistral-medium", "claude-2", "pairrm-tulu-2-70b"),
)
Scores = Mapping[str, Mapping[str, float]]  # by prompt, then by model


@dataclass(frozen=True, slots=True)
class Pair:
    """Prompts and the scores of one small and one large model, in the data's own unit."""

    name: str
    prompts: list[str]
    small: list[float]
    large: list[float]


def routellm_gsm8k() -> Pair:
    bad = _contaminated("gsm8k")
    rows = [row for row in table("routellm/gsm8k/gsm8k_responses.csv.gz") if row["prompt"].strip() not in bad]
    return _answered("gsm8k", rows)


def routellm_mmlu() -> Pair:
    bad = _contaminated("mmlu")
    files = sorted((DATA / "routellm/mmlu/responses").glob("*.csv.gz"))
    rows = [row for path in files for row in table(str(path.relative_to(DATA)))]
    return _answered("mmlu", [row for row in rows if row["prompt"].strip() not in bad])


def routellm_mt_bench() -> Pair:
    """The first turn is what a router sees; the score is the mean of both turns."""
    bad, scores = _contaminated("mt_bench"), defaultdict(list)
    for row in _lines("routellm/mt_bench/judgements.jsonl.gz"):
        scores[row["question_id"], row["model"]].append(float(row["score"]))
    asked = {row["question_id"]: row["turns"][0] for row in _lines("routellm/mt_bench/question.jsonl.gz")}
    kept = {name: text for name, text in asked.items() if text.strip() not in bad}
    small, large = ([float(np.mean(scores[name, model])) for name in kept] for model in (WEAK, STRONG))
    return Pair("mt_bench", list(kept.values()), small, large)


def zeroeval(task: str) -> Pair:
    """Llama-3 8B and 70B."""
    prompts, scores = zero_scores(task)
    kept = [name for name, known in scores.items() if all(model in known for model in LLAMA)]
    small, large = ([scores[name][model] for name in kept] for model in LLAMA)
    return Pair(f"zeroeval_{task}", [prompts[name] for name in kept], small, large)


def zero_scores(task: str) -> tuple[dict[str, str], Scores]:
    """Prompts, and what each model of 60 got right."""
    rows = _lines("zeroeval/prompts.jsonl.gz")
    prompts = {str(row["idx"]): row["prompt"] for row in rows if row["task"] == task}
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for row in table("zeroeval/outputs.csv.gz"):
        if row["task"] == task:
            scores[row["idx"]][row["model"]] = float(row["correct"])
    return prompts, scores


def zero_answers(task: str) -> dict[str, str]:
    """What is right, by prompt."""
    rows = _lines("zeroeval/prompts.jsonl.gz")
    return {str(row["idx"]): str(row["gold"]) for row in rows if row["task"] == task}


def zero_lengths(task: str) -> dict[str, float]:
    """Output tokens of the small Llama, by prompt."""
    rows = table("zeroeval/outputs.csv.gz")
    return {
        row["idx"]: float(row["out_tok_family"] or row["out_tok_cl100k"])
        for row in rows
        if row["task"] == task and row["model"] == LLAMA[0]
    }


def chat_scores() -> tuple[dict[str, str], Scores]:
    """AlpacaEval: whether a judge preferred each of 53 models to one reference."""
    prompts = {str(row["idx"]): row["prompt"] for row in _lines("alpaca_eval/prompts.jsonl.gz")}
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for row in table("alpaca_eval/preferences.csv.gz"):
        if row["annotator"] == "alpaca_eval_gpt4" and row["preference"]:
            scores[row["idx"]][row["model"]] = float(row["preference"]) - 1.0
    return prompts, scores


def of_pair(pair: Pair, *, weight: float = 1.0) -> Outcomes:
    """`suffices`: the small one was no worse."""
    small, large = np.array(pair.small), np.array(pair.large)
    return _outcomes(pair.prompts, small, large, suffices=(large <= small).astype(float), weight=weight)


def of_many(
    prompts: Mapping[str, str],
    scores: Scores,
    *,
    small: Iterable[str],
    large: Iterable[str],
    weight: float = 1.0,
) -> Outcomes:
    """Means over all pairs of a small and a large model."""
    texts, columns = [], []
    for name, known in scores.items():
        low = np.array([known[model] for model in small if model in known])
        high = np.array([known[model] for model in large if model in known])
        if name in prompts and len(low) and len(high):
            texts.append(prompts[name])
            columns.append((low.mean(), high.mean(), 1.0 - np.mean(high[:, None] > low[None, :])))
    table = np.array(columns, float)
    return _outcomes(texts, table[:, 0], table[:, 1], suffices=table[:, 2], weight=weight)


def joined(parts: list[Outcomes]) -> Outcomes:
    """All of them, one after the other."""
    words = [said for part in parts for said in part.words]
    names = ("x", "small", "large", "suffices", "weight")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Outcomes(words=words, **columns)


def _outcomes(texts: list[str], small: Any, large: Any, *, suffices: Any, weight: float) -> Outcomes:
    reader = Reader()
    read = [reader.read({"messages": [{"role": "user", "content": text}]}) for text in texts]
    x = np.array([features.values for features in read], float)
    words = [features.words for features in read]
    return Outcomes(
        x, words, np.asarray(small, float), np.asarray(large, float), suffices, np.full(len(x), weight)
    )


def _answered(name: str, rows: list[dict[str, str]]) -> Pair:
    small, large = ([float(row[model] == "True") for row in rows] for model in (WEAK, STRONG))
    return Pair(name, [row["prompt"] for row in rows], small, large)


def _contaminated(folder: str) -> set[str]:
    return {row["eval_prompt"].strip() for row in _lines(f"routellm/{folder}/contaminated_prompts.jsonl.gz")}


def _lines(path: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def table(path: str) -> list[dict[str, str]]:
    csv.field_size_limit(1 << 30)
    with gzip.open(DATA / path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))
