"""Turns public data sets into rows for the length models: documents where there is text, sizes where there is none.

Each set is read where it lies and never copied. `Case.prompts` are the actual prompt tokens, which no forecast sees.
"""

import csv
import gzip
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from predictor.features import FEATURES, INDEX, Reader
from predictor.history import History, Past
from predictor.lexicon import EMPTY
from predictor.train.fit import Split
from predictor.train.rows import Floats, Row, Rows, table
from predictor.train.word_weights import folded, score, word_weights

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
READER = Reader(lexicon=EMPTY)  # word weights are learned on each case's own training part
LAG = 64  # requests between a request's arrival and what is known of those before it: they are still running
MEMORY = 256  # outputs that a moving history remembers
NO_WORDS: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Case:
    """A data set as rows. `words`: of each row's prompt, empty where its text is not known."""

    name: str
    rows: Rows
    prompts: Floats
    words: list[frozenset[bytes]]
    ordered: bool = False  # by time: split so
    ceiling: str = "not known (no repeated runs)"


def jsonl(path: str) -> Iterator[dict[str, Any]]:
    """`path` in DATA, gzipped."""
    with gzip.open(DATA / path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def table_of(path: str) -> Iterator[dict[str, str]]:
    """A CSV file in DATA, gzipped or not."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(DATA / path, "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def sizes_only(prompt_tokens: float) -> list[float]:
    """Features of a request of which nothing but its size is known."""
    values = [0.0] * len(FEATURES)
    values[INDEX["prompt_tokens"]] = values[INDEX["user_tokens"]] = prompt_tokens
    values[INDEX["messages"]] = 1.0
    for name in ("last_answer_tokens", "mean_answer_tokens"):
        values[INDEX[name]] = -1.0
    return put_past(values, Past())


def put_past(values: list[float], past: Past) -> list[float]:
    """As `Reader.read` does it."""
    for kind, known in (("template", past.template), ("pool", past.pool)):
        values[INDEX[f"{kind}_count"]] = float(known.count)
        values[INDEX[f"{kind}_mean_log"]] = known.mean_log if known.count else -1.0
    values[INDEX["template_q50"]] = past.template.q50 if past.template.count else -1.0
    values[INDEX["template_q90"]] = past.template.q90 if past.template.count else -1.0
    return values


class Moving:
    """Histories by key in the order of arrival: a request sees those that ended LAG requests before it."""

    def __init__(self, lag: int = LAG) -> None:
        self._lag = lag
        self._running: deque[tuple[str, float]] = deque()
        self._ended: dict[str, deque[float]] = {}

    def past(self, key: str) -> Past:
        """Before `add` of the same request."""
        return Past(History.of(self._ended.get(key, ())), self._pool())

    def add(self, key: str, output: float) -> None:
        self._running.append((key, output))
        while len(self._running) > self._lag:
            ended, tokens = self._running.popleft()
            for name in (ended, ""):
                self._ended.setdefault(name, deque(maxlen=MEMORY)).append(tokens)

    def _pool(self) -> History:
        ended = self._ended.get("", ())
        if not ended:
            return History()
        logs = [math.log1p(tokens) for tokens in ended]
        return History(len(logs), math.fsum(logs) / len(logs))


def traffic(name: str, requests: Iterable[tuple[float, float]], *, ordered: bool) -> Case:
    """Of (prompt tokens, output tokens). The template of a request without text is its size, in powers of four."""
    moving, rows = Moving(), list[Row]()
    for prompt, output in requests:
        key = f"size {int(prompt).bit_length() // 2}"
        rows.append(Row(tuple(put_past(sizes_only(prompt), moving.past(key))), output))
        moving.add(key, output)
    made = table(rows)
    return Case(name, made, made.x[:, 0], [NO_WORDS] * len(made), ordered=ordered)


def with_words(case: Case, parts: Split) -> Case:
    """Adds the feature `words_length`, by weights learned on the training part (for that part: on its other folds)."""
    texts = np.array([bool(words) for words in case.words])
    if not texts.any():
        return case
    logs = np.log1p(case.rows.output)
    level = case.rows.x[:, INDEX["pool_mean_log"]]
    target = np.where(level >= 0, logs - level, logs - logs[parts.train].mean())
    x, train = case.rows.x.copy(), np.flatnonzero(parts.train)
    words = [case.words[at] for at in train]
    weights = word_weights(words, target[train])
    column = INDEX["words_length"]
    x[:, column] = [score(each, weights) for each in case.words]
    x[train, column] = folded(words, target[train], groups=case.rows.groups[train])
    return replace(case, rows=replace(case.rows, x=x))
