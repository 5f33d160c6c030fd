"""The data sets of the length benchmark, one function each. See `predictor_rows.py`."""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from predictor_rows import READER, Case, Moving, jsonl, put_past, table_of, traffic

from predictor.features import INDEX
from predictor.history import History, Past
from predictor.train import scores
from predictor.train.fit import Split
from predictor.train.rows import Row, Rows, table

CHAT_CEILING = "same model and prompt run again: {within:.3f} within 20 %, tau {tau:.2f}"


def azure(service: str) -> Case:
    """In the order of arrival; only sizes are public."""
    path = f"azure2023/AzureLLMInferenceTrace_{service}.csv"
    sizes = ((float(r["ContextTokens"]), float(r["GeneratedTokens"])) for r in table_of(path))
    return traffic(f"azure_{service}", sizes, ordered=True)


def summarisation(quick: bool) -> Case:
    """arXiv papers and their summaries; only sizes are public, and no order."""
    path = "vidur_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    sizes = [(float(r["num_prefill_tokens"]), float(r["num_decode_tokens"])) for r in table_of(path)]
    return traffic("summarisation", sizes[:: 4 if quick else 1], ordered=True)


def alpaca(quick: bool) -> Case:
    """Every 6th (quick: 24th) model; its level is known, the prompt is new. Groups are prompts."""
    prompts = {r["idx"]: r for r in jsonl("alpaca_eval/prompts.jsonl.gz")}
    read = {at: READER.read(user(r["prompt"])) for at, r in prompts.items()}
    outputs = defaultdict[str, list[tuple[int, float]]](list)
    for r in table_of("alpaca_eval/outputs.csv.gz"):
        outputs[r["model"]].append((int(r["idx"]), float(r["out_tok_family"])))
    rows, actual, words = list[Row](), list[float](), list[frozenset[bytes]]()
    for model in sorted(outputs)[:: 24 if quick else 6]:
        answered = [(at, tokens) for at, tokens in outputs[model] if at in read and tokens > 0]
        level = History.of([tokens for at, tokens in answered if in_training(f"prompt {at}")])
        for at, tokens in answered:
            values = put_past(list(read[at].values), Past(pool=level))
            kind = str(read[at].prompt_type)
            rows.append(Row(tuple(values), tokens, kind=kind, group=f"prompt {at}"))
            actual.append(float(prompts[at]["in_tok_cl100k"]))
            words.append(read[at].words)
    return Case("alpaca_eval", table(rows), np.array(actual), words, ceiling=chat_ceiling())


def sharegpt(quick: bool) -> Case:
    """Turns in order; a conversation's earlier answers are in its document. Prompts are cut to 900 characters there, so
    that their sizes are taken from the set."""
    rows, actual, words = list[Row](), list[float](), list[frozenset[bytes]]()
    moving, before = Moving(), defaultdict[str, list[float]](list)
    for r in jsonl("sharegpt_turns/turns.jsonl.gz"):
        conversation = r["c"].rsplit("_", 1)[0]
        if r["out_tok"] < 1 or (quick and zlib.crc32(conversation.encode()) % 3):
            continue
        found, answers = READER.read(user(r["prompt"])), before[r["c"]]
        values = put_past(list(found.values), moving.past(found.template))
        size = float(r["in_tok"] + r["ctx_tok"])
        for name, value in (
            ("prompt_tokens", size),
            ("user_tokens", r["in_tok"]),
            ("messages", 2 * r["t"] + 1),
        ):
            values[INDEX[name]] = float(value)
        if answers:
            values[INDEX["answers"]] = len(answers)
            values[INDEX["last_answer_tokens"]] = answers[-1]
            values[INDEX["mean_answer_tokens"]] = sum(answers) / len(answers)
        rows.append(Row(tuple(values), float(r["out_tok"]), kind=str(found.prompt_type), group=conversation))
        actual.append(size)
        words.append(found.words)
        answers.append(float(r["out_tok"]))
        moving.add(found.template, float(r["out_tok"]))
    return Case("sharegpt", table(rows), np.array(actual), words, ceiling=chat_ceiling())


BFCL_CATEGORIES = {
    "simple": "simple_python",
    "parallel_function": "parallel",
    "multiple_function": "multiple",
    "parallel_multiple_function": "parallel_multiple",
    "java": "simple_java",
    "javascript": "simple_javascript",
    "relevance": "irrelevance",
}


def bfcl(quick: bool) -> Case:
    """Results of 2024 with the questions of version 4, where the number is the same; groups are questions."""
    asked = {r["id"]: r for r in jsonl("bfcl_v4/questions.jsonl.gz")}
    read = {key: READER.read(tool_document(r)) for key, r in asked.items()}
    by_model = defaultdict[str, list[tuple[str, float, float]]](list)
    for model, key, size, tokens in _bfcl_results():
        if key in read:
            by_model[model].append((key, size, tokens))
    rows, actual, words = list[Row](), list[float](), list[frozenset[bytes]]()
    for model in sorted(by_model)[:: 6 if quick else 2]:
        level = History.of([tokens for key, _, tokens in by_model[model] if in_training(key)])
        for key, size, tokens in by_model[model]:
            values = put_past(list(read[key].values), Past(pool=level))
            values[INDEX["prompt_tokens"]] = size
            rows.append(Row(tuple(values), tokens, kind=str(read[key].prompt_type), group=key))
            actual.append(size)
            words.append(read[key].words)
    return Case("bfcl", table(rows), np.array(actual), words)


def tool_document(question: dict[str, Any]) -> dict[str, Any]:
    """The set has the names of the functions and the size of their descriptions, not the descriptions."""
    names = question["function_names"]
    filler = max(0, question["function_chars"] // max(1, len(names)) - 60)
    tools = [
        {"type": "function", "function": {"name": name, "description": "word " * (filler // 5)}}
        for name in names
    ]
    return {**user(question["user"]), **({"tools": tools} if tools else {})}


def chat_ceiling() -> str:
    """How well one run of a model foretells another at another temperature, over 20,000 prompts."""
    pairs = [(float(r["L_t0.3"]), float(r["L_t0.5"])) for r in _repeated()]
    first, second = np.array(pairs).T
    return CHAT_CEILING.format(within=scores.within(second, first), tau=scores.tau(second, first))


CASES: dict[str, Callable[[bool], Case]] = {
    "azure_code": lambda _: azure("code"),
    "azure_conv": lambda _: azure("conv"),
    "alpaca_eval": alpaca,
    "sharegpt": sharegpt,
    "bfcl": bfcl,
    "summarisation": summarisation,
}


def in_training(group: str) -> bool:
    """Six tenths of the groups, by their names: what a pool's level may be taken from."""
    return zlib.crc32(group.encode()) % 10 < 6


def by_group(rows: Rows) -> Split:
    """60 % to train (those of `in_training`), 20 % to calibrate, 20 % to test."""
    place = np.array([zlib.crc32(group.encode()) % 10 for group in rows.groups])
    return Split(place < 6, (place == 6) | (place == 7), place > 7)


def _bfcl_results() -> Iterator[tuple[str, str, float, float]]:
    for r in table_of("bfcl_results_2024/results.csv.gz"):
        size, tokens = r["input_token_count"], float(r["out_tok_cl100k"] or 0)
        if r["category"] in BFCL_CATEGORIES and size not in ("", "0") and tokens > 0:
            number = r["id"].rsplit("_", 1)[1]
            yield r["model"], f"{BFCL_CATEGORIES[r['category']]}_{number}", float(size), tokens


def _repeated() -> Iterator[dict[str, str]]:
    for part in ("train", "val"):
        yield from table_of(f"seqsched_alpaca_lengths/alpaca-{part}-10k-length.csv.gz")


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}
