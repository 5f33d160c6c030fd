"""What real servers answered, or what their source says they do: see fixtures/README.md."""

from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parent / "fixtures"


def text(name: str) -> str:
    return (FOLDER / name).read_text()


def raw(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def page(name: str) -> Any:
    return orjson.loads(raw(name))


def pages(dialect: str) -> dict[str, object]:
    """Paths and what the server of that dialect answers there."""
    named: dict[str, dict[str, str]] = {
        "vllm": {"/v1/models": "models.json", "/metrics": "metrics_running.txt", "/version": "version.json"},
        "llamacpp": {
            "/v1/models": "models.json",
            "/metrics": "metrics_running.txt",
            "/props": "props.json",
            "/slots": "slots_running.json",
        },
        "sglang": {
            "/v1/models": "models.json",
            "/metrics": "metrics_running.txt",
            "/server_info": "server_info.json",
        },
        "tgi": {"/v1/models": "models.json", "/metrics": "metrics_running.txt", "/info": "info.json"},
        "ollama": {"/v1/models": "models.json", "/api/ps": "ps.json"},
    }
    found: dict[str, object] = {}
    for path, name in named[dialect].items():
        found[path] = text(f"{dialect}/{name}") if name.endswith(".txt") else page(f"{dialect}/{name}")
    return found
