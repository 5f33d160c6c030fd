"""Reads a server's own pages by the facts of its dialect: limits from JSON, load from Prometheus text. Pure.

Invariant: what a page does not say is None, never zero. Source: the Prometheus text format 0.0.4.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from workers.engine import EngineLimits, EngineLoad
from workers.engines.dialects import Dialect, Metrics, Names, OwnModel, Steps

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r"(?:\{([^\n]*)\})?[ \t]+([^\s]+)")  # after the name
MOST = 10**15  # of anything that is counted: larger numbers are wrong, and no JSON or Redis takes all of them
_NAMES_OF_MODEL = ("id", "name", "model")

Labels = frozenset[tuple[str, str]]
Pages = Mapping[str, Any]  # by the first of the paths of a `Facts`


def walk(page: Any, path: Steps, *, model: str | None = None) -> Any:
    """The value at the path, None if the page is of another shape."""
    for step in path:
        if isinstance(step, OwnModel):
            page = _own(page, model)
        elif isinstance(page, dict):
            page = page.get(step)
        elif isinstance(page, list) and isinstance(step, int) and step < len(page):
            page = page[step]
        else:
            return None
    return page


def _own(page: Any, model: str | None) -> Any:
    entries = [entry for entry in page if isinstance(entry, dict)] if isinstance(page, list) else []
    ours = (entry for entry in entries if model in [entry.get(name) for name in _NAMES_OF_MODEL])
    return next(ours, None) if model is not None else next(iter(entries), None)


def _positive(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= MOST else None  # a bool is no number


def read_limits(dialect: Dialect, pages: Pages, *, model: str | None) -> EngineLimits:
    """What no page says is the dialect's default."""
    slots: int | None = None
    context: int | None = None
    tokens: int | None = None
    for facts in dialect.facts:
        page = pages.get(facts.paths[0])
        times = _positive(walk(page, facts.times)) or 1 if facts.times else 1
        slots = slots or _times(_at(page, facts.slots, model=model), times)
        context = context or _at(page, facts.context_tokens, model=model)
        tokens = tokens or _times(_at(page, facts.kv_tokens, model=model), times)
    known = slots is not None
    return EngineLimits(slots or dialect.default_slots, context, model, tokens, slots_known=known)


def _at(page: Any, path: Steps, *, model: str | None) -> int | None:
    return _positive(walk(page, path, model=model)) if path else None


def _times(number: int | None, times: int) -> int | None:
    return None if number is None else _positive(number * times)


def priority_sign(dialect: Dialect, pages: Pages) -> int:
    """1: lower first, -1: higher first, 0: not to be sent."""
    rule = dialect.priority
    if rule is None:
        return 0
    if not rule.only_if_told:
        return rule.sign
    told = [(pages.get(facts.paths[0]), facts) for facts in dialect.facts]
    if not any(_says(page, facts.by_priority) for page, facts in told):
        return 0
    return 1 if any(_says(page, facts.lower_first) for page, facts in told) else rule.sign


def _says(page: Any, path: Steps) -> bool:
    return bool(path) and walk(page, path) is True


def first_model(page: Any) -> str | None:
    """From an answer of `/v1/models`."""
    model = walk(page, ("data", 0, "id"))
    return model if isinstance(model, str) and model else None


def owner_of(page: Any) -> str:
    """Who made the model, as `/v1/models` says; many servers put themselves there."""
    owner = walk(page, ("data", 0, "owned_by"))
    return owner if isinstance(owner, str) else ""


@dataclass(slots=True)
class _Family:
    """The samples of one name. `values` by labels but for those of copies; of copies the largest counts."""

    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, labels: Labels, value: float) -> None:
        self.values[labels] = max(value, self.values.get(labels, -math.inf))

    def by(self, label: str) -> dict[str, float]:
        """Sums by the value of one label."""
        sums: dict[str, float] = {}
        for labels, value in self.values.items():
            name = dict(labels).get(label, "")
            sums[name] = sums.get(name, 0.0) + value
        return sums


@dataclass(slots=True)
class _Page:
    """The families of one page that its dialect knows."""

    known: Metrics
    families: dict[str, _Family]

    def family(self, names: Names) -> _Family | None:
        return next((self.families[name] for name in names if name in self.families), None)

    def total(self, names: Names) -> int | None:
        family = self.family(names)
        return None if family is None else int(sum(family.values.values()))

    def kv_tokens(self) -> dict[str, float]:
        """By engine; empty: not told."""
        if (family := self.family(self.known.kv_total_tokens)) is not None:
            return {name: value for name, value in family.by(self.known.engine_label).items() if value > 0}
        config = self.family(self.known.kv_config)
        entries = [dict(labels) for labels in config.values] if config is not None else []
        found = [(entry, _config_tokens(entry, engines=len(entries))) for entry in entries]
        return {entry.get(self.known.engine_label, ""): n for entry, n in found if n and n <= MOST}

    def kv_page_tokens(self) -> int | None:
        """The largest, where several engines differ."""
        config = self.family(self.known.kv_config)
        sizes = [dict(labels).get("block_size", "") for labels in config.values] if config is not None else []
        return max(
            (int(size) for size in sizes if size.isdecimal() and 0 < float(size) <= MOST), default=None
        )

    def kv_used_share(self, totals: Mapping[str, float]) -> float | None:
        if (family := self.family(self.known.kv_used_share)) is not None:
            shares = [
                (value, dict(labels).get(self.known.engine_label, ""))
                for labels, value in family.values.items()
            ]
            weights = [totals.get(engine, 0.0) for _, engine in shares]
            weights = weights if all(weights) else [1.0] * len(shares)
            mean = sum(s * w for (s, _), w in zip(shares, weights, strict=True)) / sum(weights)
            return min(1.0, max(0.0, mean))
        used, room = self.total(self.known.kv_used_tokens), sum(totals.values())
        return None if used is None or not room else min(1.0, used / room)


def _config_tokens(labels: Mapping[str, str], *, engines: int) -> float | None:
    """Labels are text, and "None" before the engine has measured its memory.

    `num_gpu_blocks` is the sum over all engines, repeated for each of them; `kv_cache_size_tokens`, which newer versions
    have, is of one engine (vllm 0.32.0, v1/engine/core_client.py).
    """
    if labels.get("kv_cache_size_tokens", "").isdecimal():
        return float(labels["kv_cache_size_tokens"])
    size, blocks = labels.get("block_size", ""), labels.get("num_gpu_blocks", "")
    return float(size) * float(blocks) / engines if size.isdecimal() and blocks.isdecimal() else None


@cache
def _names(known: Metrics) -> frozenset[str]:
    """All that are read."""
    found = (getattr(known, part.name) for part in fields(known))
    return frozenset(name for names in found if isinstance(names, tuple) for name in names)


def _parse(known: Metrics, text: str) -> _Page:
    """A page has a thousand lines, and ten that matter: the rest is told by its name alone."""
    families: dict[str, _Family] = {}
    names = _names(known)
    for line in text.split("\n"):
        name = line.partition("{")[0] if "{" in line else line.partition(" ")[0]
        if name not in names or (sample := _SAMPLE.match(line, len(name))) is None:
            continue
        value = _number(sample[2])
        if value is not None:
            pairs = frozenset(pair for pair in _LABEL.findall(sample[1] or "") if pair[0] not in known.copies)
            families.setdefault(name, _Family()).add(pairs, value)
    return _Page(known, families)


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if abs(value) <= MOST else None  # NaN neither


def read_load(dialect: Dialect, text: str, *, slots: Any = None, kv_tokens: int | None = None) -> EngineLoad:
    """`slots`: the answer of llama.cpp's `/slots`. `kv_tokens`: size of the KV cache, where the pages do not tell it."""
    if dialect.metrics is None:
        return EngineLoad(kv_total_tokens=kv_tokens)
    page = _parse(dialect.metrics, text)
    totals = page.kv_tokens()
    hits, queries = page.total(page.known.prefix_hits), page.total(page.known.prefix_queries)
    misses = page.total(page.known.prefix_misses)
    if queries is None and hits is not None and misses is not None:
        queries = hits + misses
    total = int(sum(totals.values())) or kv_tokens
    share = page.kv_used_share(totals)
    return EngineLoad(
        running=page.total(page.known.running),
        waiting=page.total(page.known.waiting),
        kv_used_share=_slots_share(slots, kv_tokens) if share is None else share,
        kv_total_tokens=total,
        kv_page_tokens=page.kv_page_tokens(),
        prefix_hit_tokens=hits,
        prefix_query_tokens=queries,
        preemptions=page.total(page.known.preemptions),
    )


def _slots_share(slots: Any, kv_tokens: int | None) -> float | None:
    """Tokens of running requests over all. Idle slots' cached prefixes are given up on demand.

    `n_prompt_tokens` grows with the answer (seen: 33 of the prompt and 65 decoded are 98), so the parts are added.
    The slots' own sizes are no measure: in a unified cache each slot claims all of it.
    """
    if not isinstance(slots, list) or not kv_tokens:
        return None
    used = 0
    for slot in slots:
        if walk(slot, ("is_processing",)) is True:
            parts = (
                ("n_prompt_tokens_processed",),
                ("n_prompt_tokens_cache",),
                ("next_token", 0, "n_decoded"),
            )
            used += sum(_positive(walk(slot, path)) or 0 for path in parts)
    return min(1.0, used / kv_tokens)
