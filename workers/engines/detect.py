"""Finds out which dialect a server speaks, from what it says of itself. Nothing but GETs of small pages.

Signs in the order of their worth: who owns the model in `/v1/models` and the `Server` header (one request, which is made
anyway); pages that only one kind of server has; the prefix of the metrics' names.
"""

import logging
from typing import Any

from workers.engines.dialects import DIALECTS, Dialect, Steps
from workers.engines.pages import Page, Reader
from workers.engines.scrape import owner_of, walk

log = logging.getLogger("headway.engine")

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "library": "ollama"}
SERVERS = {"llama.cpp": "llamacpp"}
PAGES: tuple[tuple[str, Steps, type, str], ...] = (
    ("/info", ("max_concurrent_requests",), int, "tgi"),
    ("/props", ("default_generation_settings",), dict, "llamacpp"),
    ("/api/ps", ("models",), list, "ollama"),
)
PREFIXES = {"vllm:": "vllm", "sglang:": "sglang", "llamacpp:": "llamacpp", "tgi_": "tgi"}
UNKNOWN = "openai"  # speaks OpenAI's API, and says no more


def by_models(models: Page) -> str | None:
    """From the answer of `/v1/models` alone."""
    page: Any = models.json()
    return OWNERS.get(owner_of(page)) or SERVERS.get(models.server)


async def detect(reader: Reader, models: Page) -> Dialect:
    """`openai` where there is no sign. Raises EngineUnavailable."""
    return DIALECTS[by_models(models) or await _by_pages(reader) or await _by_metrics(reader) or UNKNOWN]


async def _by_pages(reader: Reader) -> str | None:
    for path, steps, kind, name in PAGES:
        if isinstance(walk((await reader.get(path)).json(), steps), kind):
            return name
    return None


async def _by_metrics(reader: Reader) -> str | None:
    page = await reader.get("/metrics")
    lines = page.body.decode(errors="replace").splitlines() if page.there else []
    samples = (line for line in lines if not line.startswith("#"))
    return next((PREFIXES[p] for line in samples for p in PREFIXES if line.startswith(p)), None)


def doubt(named: Dialect, models: Page, *, engine: str) -> None:
    """Logs a warning where the dialect that a person named is not what the server looks like."""
    found = by_models(models)
    if found is not None and found != named.name:
        log.warning(
            "%s looks like %s: with a wrong dialect its load, limits and busy answers are misread",
            engine,
            found,
        )
