"""What the models that ship have learned from: only sets whose licence allows it, and runs of the embedded engine.

A set without text fills what it cannot know with NaN, which LightGBM takes for missing. How much is known of a pool and
of a template differs from request to request, as it does in a service: histories of 0 to 1,000 requests are drawn.
"""

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from predictor_cases import tool_document, user
from predictor_rows import DATA, READER, Moving, jsonl, put_past, sizes_only, table_of

from predictor.features import FEATURES, INDEX, Features
from predictor.history import History, Past
from predictor.model_card import Source
from predictor.train.rows import Row

KNOWN_OF_SIZES = {"prompt_tokens", "user_tokens", "messages"} | {
    name for name in FEATURES if name.startswith(("template_", "pool_"))
}
HISTORY_SIZES = (0, 0, 0, 3, 10, 50, 250)
POOL_SIZES = (0, 5, 30, 200, 1000)
ZEROEVAL_ROWS = 9_000
SIZES_WEIGHT = 0.3
TALK_WEIGHT = 0.3  # one bot's conversations: how its answers grow from turn to turn is its own way
TURN = " turn "  # in the name of a prompt: what comes before names the conversation


@dataclass(slots=True)
class Lesson:
    """One finished request. `level`: mean logarithm of its model's outputs. `prompt`: what names its text."""

    values: list[float]
    output: float
    level: float = 0.0
    words: frozenset[bytes] = frozenset()
    prompt: str = ""
    kind: str = ""
    alike: list[float] = field(default_factory=list)  # outputs of other requests of the template
    weight: float = 1.0

    def row(self, chance: np.random.Generator, *, pool: list[float]) -> Row:
        """With histories drawn by chance. `pool`: outputs of the same model."""
        values, seen = self.values, POOL_SIZES[chance.integers(len(POOL_SIZES))]
        if pool:
            kept = History.of(_drawn(self.alike, HISTORY_SIZES[chance.integers(len(HISTORY_SIZES))], chance))
            values = put_past(list(values), Past(kept, History.of(_drawn(pool, seen, chance))))
        return Row(
            tuple(values),
            self.output,
            kind=self.kind,
            group=self.prompt.partition(TURN)[0],
            weight=self.weight,
        )


@dataclass(slots=True)
class Lessons:
    """All of one source. `pools`: outputs by model, for histories."""

    source: str
    licence: str
    found: list[tuple[str, Lesson]] = field(default_factory=list)  # (model, lesson)
    pools: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outputs = defaultdict[str, list[float]](list)
        for model, lesson in self.found:
            outputs[model].append(lesson.output)
        self.pools = dict(outputs)
        levels = {model: float(np.log1p(tokens).mean()) for model, tokens in outputs.items()}
        for model, lesson in self.found:
            lesson.level = levels[model]

    def rows(self, chance: np.random.Generator) -> list[Row]:
        """Lessons whose past is known already (sizes in the order of time) keep it."""
        return [
            lesson.row(chance, pool=self.pools[model] if lesson.prompt else [])
            for model, lesson in self.found
        ]

    def card(self) -> Source:
        return Source(self.source, self.licence, len(self.found))


def alpaca(models: int = 40) -> Lessons:
    """What other models say to a prompt stands for a template's history, moved to the model's own level."""
    prompts = {r["idx"]: READER.read(user(r["prompt"])) for r in jsonl("alpaca_eval/prompts.jsonl.gz")}
    by_model = defaultdict[str, dict[int, float]](dict)
    for r in table_of("alpaca_eval/outputs.csv.gz"):
        if int(r["idx"]) in prompts and float(r["out_tok_family"]) > 0:
            by_model[r["model"]][int(r["idx"])] = float(r["out_tok_family"])
    levels = {model: float(np.log1p(list(said.values())).mean()) for model, said in by_model.items()}
    names = sorted(by_model)
    found = []
    for model in names[:: max(1, len(names) // models)]:
        others = [name for name in names[1::9] if name != model]
        for at, tokens in by_model[model].items():
            moved = [by_model[o][at] * np.exp(levels[model] - levels[o]) for o in others if at in by_model[o]]
            lesson = Lesson(list(prompts[at].values), tokens, words=prompts[at].words, alike=moved)
            lesson.prompt, lesson.kind = f"alpaca {at}", str(prompts[at].prompt_type)
            found.append((model, lesson))
    return Lessons("alpaca_eval", "Apache-2.0", found)


def zeroeval(rows: int = ZEROEVAL_ROWS) -> Lessons:
    """One instruction around many questions: a template as services have them."""
    prompts = {r["idx"]: READER.read(user(r["prompt"])) for r in jsonl("zeroeval/prompts.jsonl.gz")}
    all_of = [
        r
        for r in table_of("zeroeval/outputs.csv.gz")
        if r["idx"] in prompts and float(r["out_tok_family"]) > 0
    ]
    alike = defaultdict[tuple[str, str], list[float]](list)
    for r in all_of:
        alike[r["task"], r["model"]].append(float(r["out_tok_family"]))
    found = []
    for at in np.random.default_rng(3).choice(len(all_of), rows, replace=False):
        r = all_of[at]
        features = prompts[r["idx"]]
        lesson = Lesson(list(features.values), float(r["out_tok_family"]), alike=alike[r["task"], r["model"]])
        lesson.prompt, lesson.kind = f"zeroeval {r['idx']}", str(features.prompt_type)
        found.append((r["model"], lesson))
    return Lessons("zeroeval", "Apache-2.0", found)


def arena() -> Lessons:
    """Hard prompts, many of them code."""
    prompts = {
        r["uid"]: READER.read(user(r["prompt"]))
        for version in ("0.1", "2.0")
        for r in jsonl(f"arena_hard/questions_v{version}.jsonl.gz")
    }
    found = [
        (r["model"], _asked(f"arena {r['uid']}", prompts[r["uid"]], float(r["out_tok_cl100k"])))
        for r in table_of("arena_hard/answers.csv.gz")
        if r["uid"] in prompts and float(r["out_tok_cl100k"]) > 0
    ]
    return Lessons("arena_hard", "Apache-2.0", found)


def conversations() -> Lessons:
    """MT-Bench-101: several turns, earlier answers in the document. Lengths of answers are estimated from their text."""
    found = []
    for r in jsonl("prompts_misc/mtbench101.jsonl.gz"):
        messages: list[dict[str, Any]] = []
        for turn in r["history"]:
            messages.append({"role": "user", "content": turn["user"]})
            features = READER.read({"messages": messages})
            answer = turn.get("bot") or ""
            if answer:
                tokens = READER.read({"prompt": answer})["user_tokens"]
                name = f"mtbench101 {r['task']} {r['id']}{TURN}{len(messages)}"
                lesson = _asked(name, features, tokens)
                lesson.weight = TALK_WEIGHT
                found.append(("bot", lesson))
            messages.append({"role": "assistant", "content": answer})
    return Lessons("mt-bench-101", "Apache-2.0", found)


def own_runs(path: Path) -> Lessons:
    """As `predictor_runs.py` writes them. What ran into its limit counts with the limit: leaving it out would leave out the
    longest answers."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        r = json.loads(line)
        features = READER.read(r["document"])
        found.append((r["model"], _asked(f"runs {r['id']}", features, float(r["output_tokens"]))))
    return Lessons("runs of the embedded engine (SmolLM2-135M-Instruct)", "own", found)


def traffic() -> list[Lessons]:
    """Sizes in the order of arrival, with moving histories; no text."""
    made = []
    for name, licence, requests in _traces():
        moving, found = Moving(), []
        for prompt, output in requests:
            key = f"size {int(prompt).bit_length() // 2}"
            values = put_past(sizes_only(prompt), moving.past(key))
            values = [v if n in KNOWN_OF_SIZES else np.nan for n, v in zip(FEATURES, values, strict=True)]
            found.append((name, Lesson(values, output, weight=SIZES_WEIGHT)))
            moving.add(key, output)
        made.append(Lessons(name, licence, found))
    return made


def tool_lessons() -> list[tuple[Source, list[Row], list[frozenset[bytes]]]]:
    """Rows with the label `tool`, by source."""
    asked = [r for r in jsonl("bfcl_v4/questions.jsonl.gz") if r["n_functions"]]
    offered = [READER.read(tool_document(r)) for r in asked]
    bfcl = [
        Row(f.values, tool=float(r["tool_call_expected"]), group=f"bfcl {r['id']}")
        for f, r in zip(offered, asked, strict=True)
    ]
    queries = metatool()
    plain = [READER.read(user(text)) for text, _ in queries]
    meta = [
        Row(
            _unknown(f.values, ("tools", "tool_tokens", "tool_overlap", "tool_covered")),
            tool=label,
            group=text,
        )
        for f, (text, label) in zip(plain, queries, strict=True)
    ]
    agent = list(_agent_calls())
    return [
        (Source("bfcl_v4", "Apache-2.0", len(bfcl)), bfcl, [f.words for f in offered]),
        (Source("metatool", "MIT", len(meta)), meta, [f.words for f in plain]),
        (Source("tau_bench", "MIT", len(agent)), agent, [frozenset()] * len(agent)),
    ]


def _asked(prompt: str, features: Features, output: float) -> Lesson:
    return Lesson(
        list(features.values), output, words=features.words, prompt=prompt, kind=str(features.prompt_type)
    )


def _unknown(values: Iterable[float], names: Iterable[str]) -> tuple[float, ...]:
    hidden = {INDEX[name] for name in names}
    return tuple(np.nan if at in hidden else value for at, value in enumerate(values))


def metatool() -> list[tuple[str, float]]:
    with gzip.open(DATA / "metatool" / "Task1.json.gz", "rt", encoding="utf-8") as file:
        return [(r["query"], float(r["label"] == "positive")) for r in json.load(file)]


def _agent_calls() -> Iterator[Row]:
    """An airline's agent: what came before tells whether it calls a tool next. Texts are not public."""
    known = {"prompt_tokens", "user_tokens", "messages", "answers", "after_tool", "calls"}
    calls = 0.0
    for r in table_of("tau_bench/calls_gpt4o_airline.csv.gz"):
        step = float(r["call_idx"])
        calls = 0.0 if step == 0 else calls
        values = sizes_only(float(r["context_tok_cl100k"]))
        for name, value in (("user_tokens", float(r["last_msg_tok"])), ("answers", step), ("calls", calls)):
            values[INDEX[name]] = value
        values[INDEX["messages"]] = 2 * step + 2
        values[INDEX["after_tool"]] = float(r["prev_role"] == "tool")
        row = tuple(v if n in known else np.nan for n, v in zip(FEATURES, values, strict=True))
        yield Row(row, tool=float(r["tool_call"]), group=f"tau {r['task_id']}", weight=0.5)
        calls += float(r["tool_call"])


def _traces() -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    for service in ("code", "conv"):
        sizes = table_of(f"azure2023/AzureLLMInferenceTrace_{service}.csv")
        yield (
            f"azure2023 ({service})",
            "CC-BY-4.0",
            [(float(r["ContextTokens"]), float(r["GeneratedTokens"])) for r in sizes],
        )
    talk = jsonl("mooncake_fast25/conversation_trace.jsonl.gz")
    yield (
        "mooncake_fast25",
        "Apache-2.0",
        [(float(r["input_length"]), float(r["output_length"])) for r in talk],
    )
    path = DATA / "vidur_traces" / "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    with path.open(encoding="utf-8") as file:
        papers = [
            (float(r["num_prefill_tokens"]), float(r["num_decode_tokens"])) for r in csv.DictReader(file)
        ]
    yield "vidur_traces", "MIT", papers[::3]


def _drawn(outputs: list[float], n: int, chance: np.random.Generator) -> list[float]:
    return list(chance.choice(outputs, n)) if outputs and n else []
