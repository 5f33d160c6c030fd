"""How OpenAI-compatible servers differ: where they report health, load and limits, and which fields they refuse.

A new server is a new row of `DIALECTS`; `OpenAIEngine` reads rows and knows no server by name.
Sources: the servers' own documentation of their metrics and endpoints; llama.cpp's from a running server.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workers.engine import EngineLimits, EngineLoad

DEFAULT_SLOTS = 16
MODELS_PATH = "/v1/models"

Steps = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A JSON page with facts about the server, and the way through it to each of them (empty: not there)."""

    path: str
    slots: Steps = ()
    context_tokens: Steps = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """Metric names are tried in order: servers rename them. Counts are summed, shares averaged over label sets."""

    name: str
    health_path: str = MODELS_PATH
    metrics_path: str | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_used_share: tuple[str, ...] = ()
    slots_path: str | None = None  # llama.cpp: the slots, from which the share of used KV cells follows
    facts: tuple[Facts, ...] = ()
    default_slots: int = DEFAULT_SLOTS
    drops: frozenset[str] = frozenset({"priority"})  # Headway has ordered by it; servers refuse or misread it
    blames_itself_for: tuple[bytes, ...] = ()  # in the body of a 5xx that is really the caller's fault
    # llama.cpp notices that a client has left only when it cannot write to it (measured: minutes too late otherwise).
    # So it is made to write: tokens also where the caller wants the whole answer, and progress before the first token.
    streams_always: bool = False
    reports_progress: bool = False


_MODEL_LENGTH = Facts(MODELS_PATH, context_tokens=("data", 0, "max_model_len"))

DIALECTS = {
    row.name: row
    for row in (
        Dialect("openai", facts=(_MODEL_LENGTH,)),
        Dialect(
            "llamacpp",
            health_path="/health",
            metrics_path="/metrics",
            running=("llamacpp:requests_processing",),
            waiting=("llamacpp:requests_deferred",),
            slots_path="/slots",
            facts=(Facts("/props", ("total_slots",), ("default_generation_settings", "n_ctx")),),
            blames_itself_for=(b"is too large to process", b"Failed to parse", b"input is not supported"),
            streams_always=True,
            reports_progress=True,
        ),
        Dialect(
            "vllm",
            health_path="/health",
            metrics_path="/metrics",
            running=("vllm:num_requests_running",),
            waiting=("vllm:num_requests_waiting",),
            kv_used_share=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            facts=(_MODEL_LENGTH,),
        ),
        Dialect(
            "sglang",
            health_path="/health",
            metrics_path="/metrics",
            running=("sglang:num_running_reqs",),
            waiting=("sglang:num_queue_reqs",),
            kv_used_share=("sglang:token_usage",),
            facts=(_MODEL_LENGTH, Facts("/get_server_info", slots=("max_running_requests",))),
        ),
        Dialect(
            "tgi",
            health_path="/health",
            metrics_path="/metrics",
            running=("tgi_batch_current_size",),
            waiting=("tgi_queue_size",),
            facts=(Facts("/info", context_tokens=("max_total_tokens",)),),
        ),
        Dialect("ollama", default_slots=4),
    )
}


def walk(page: Any, path: Steps) -> Any:
    """The value at the path, None if the page is of another shape."""
    for step in path:
        if isinstance(page, dict):
            page = page.get(step)
        elif isinstance(page, list) and isinstance(step, int) and step < len(page):
            page = page[step]
        else:
            return None
    return page


def _positive(page: Any, path: Steps) -> int | None:
    value = walk(page, path) if path else None
    return value if isinstance(value, int) and value > 0 else None


def read_limits(dialect: Dialect, pages: dict[str, Any], *, model: str | None) -> EngineLimits:
    """From the answers to the dialect's `facts`, by path. What no page says is the dialect's default."""
    slots: int | None = None
    context: int | None = None
    for facts in dialect.facts:
        page = pages.get(facts.path)
        slots = slots or _positive(page, facts.slots)
        context = context or _positive(page, facts.context_tokens)
    return EngineLimits(slots or dialect.default_slots, context, model)


def first_model(page: Any) -> str | None:
    """From an answer of `/v1/models`."""
    model = walk(page, ("data", 0, "id"))
    return model if isinstance(model, str) and model else None


def _samples(text: str, names: Sequence[str]) -> list[float]:
    """All label sets of the first name that is there. Source: the Prometheus text format 0.0.4."""
    for name in names:
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^\n]*\}})?[ \t]+([^\s]+)", text, re.MULTILINE)
        if found:
            return [float(value) for value in found if value != "NaN"]
    return []


def read_load(dialect: Dialect, metrics: str, *, slots: Any) -> EngineLoad:
    """From the metrics page and, for llama.cpp, the answer of `/slots`."""
    running = _samples(metrics, dialect.running)
    waiting = _samples(metrics, dialect.waiting)
    shares = _samples(metrics, dialect.kv_used_share)
    return EngineLoad(
        running=int(sum(running)) if running else None,
        waiting=int(sum(waiting)) if waiting else None,
        kv_used_share=sum(shares) / len(shares) if shares else _slots_share(slots),
    )


def _slots_share(slots: Any) -> float | None:
    """Tokens of running requests over what all slots hold. Idle slots' cached prefixes are given up on demand."""
    if not isinstance(slots, list) or not slots:
        return None
    room = sum(_positive(slot, ("n_ctx",)) or 0 for slot in slots)
    used = 0
    for slot in slots:
        if walk(slot, ("is_processing",)) is True:
            used += _positive(slot, ("n_prompt_tokens",)) or 0
            used += _positive(slot, ("next_token", 0, "n_decoded")) or 0
    return min(1.0, used / room) if room else None
