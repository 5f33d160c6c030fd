"""schemathesis against a running Headway: what it answers must be what /openapi.json says, whatever it is asked.

schemathesis is a program in an environment of its own, which `make fuzz` makes; nothing of it is imported here.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.conditions import wait_until_sync
from tests.fuzzed import CANARY

PROGRAM = Path(sys.prefix).parent / ".venv-fuzz" / "bin" / "schemathesis"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
PATIENCE_S = 10.0  # with one request; a stream that stands still as long counts as a failure
MOST_EVENTS = 20  # of a stream: some never end
STEERING = "^/v1/fleet/.+"
DEADLINE_PASSED = 504  # what a caller is told whose own deadline was too short


@dataclass(slots=True)
class Found:
    """`cases`: requests that were answered and checked. `failures`: what was wrong, a line each."""

    cases: int = 0
    failures: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Found") -> "Found":
        self.cases += other.cases
        self.failures += other.failures
        return self


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program. `examples`: of each operation, most. `lasts_s`: it is stopped then, which is a failure.

    `steering`: of pools and workers, which is what is asked then; else everything but that, for what is paused does not answer.
    """

    url: str
    seed: int
    examples: int
    lasts_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    steering: bool = False


def seeds(url: str, headers: Mapping[str, str]) -> dict[str, list[str]]:
    """Ids that are there, so that what is asked is not always 404: of jobs that ended, well and badly, files, a batch, workers."""
    with httpx.Client(base_url=url, headers=dict(headers), timeout=30) as http:
        jobs = [_ended(http, model) for model in ("small", "broken")]
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
        line["body"] = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}  # type: ignore[assignment]
        form: dict[str, Any] = {"files": {"file": json.dumps(line).encode()}, "data": {"purpose": "batch"}}
        file_id, kept_id = (http.post("/v1/files", **form).json()["id"] for _ in range(2))
        asked = {"input_file_id": kept_id, "endpoint": "/v1/chat/completions", "completion_window": "1h"}
        batch_id = http.post("/v1/batches", json=asked).json()["id"]
        pools = http.get("/v1/fleet").json()["pools"]
    workers = [each["id"] for pool in pools if pool["pool"] == "spare" for each in pool["workers"]]
    return {
        "model": ["small", "large", "auto"],
        "pool": ["spare"],
        "job_id": jobs,
        "file_id": [file_id],
        "input_file_id": [kept_id],  # not in paths, where it would be deleted
        "batch_id": [batch_id],
        "worker_id": workers or ["none"],
    }


def _ended(http: httpx.Client, model: str) -> str:
    asked = {"model": model, "prompt": CANARY, "class": "P1"}
    job_id = str(http.post("/v1/jobs", json=asked).json()["id"])
    wait_until_sync(
        lambda: http.get(f"/v1/jobs/{job_id}?wait=5").json()["timings"]["finished_at"], timeout_s=30
    )
    return job_id


def configuration(known: Mapping[str, list[str]]) -> str:
    """In the program's own format: where a parameter has such a name, one of these values is usual."""
    hooks = Path(__file__).with_name("fuzz_hooks.py")
    lines = [f"max-stream-events = {MOST_EVENTS}\nhooks = {json.dumps(str(hooks))}"]
    lines.append(f"[checks.not_a_server_error]\nexpected-statuses = ['2xx', '3xx', '4xx', {DEADLINE_PASSED}]")
    lines += [f"[dictionaries.{name}]\nvalues = {json.dumps(values)}" for name, values in known.items()]
    lines.append("[parameters]")
    for name in known:
        place = f"body.{name}" if name == "input_file_id" else f"path.{name}"
        lines.append(f"{json.dumps(place)} = {{dictionary = '{name}', probability = 0.8}}")
    lines.append("'body.model' = {dictionary = 'model', probability = 0.8}")
    return "\n".join(lines) + "\n"


def run(asked: Run, folder: Path, *, known: Mapping[str, list[str]]) -> Found:
    """`folder`: for its files. What it says is kept there."""
    if not PROGRAM.exists():
        raise SystemExit(f"{PROGRAM} is not there: `make fuzz` installs it")
    config, events = folder / "schemathesis.toml", folder / "events.ndjson"
    config.write_text(configuration(known))
    command = [str(PROGRAM), "--config-file", str(config), "run", f"{asked.url}/openapi.json"]
    command += ["--checks", CHECKS, "--max-examples", str(asked.examples), "--seed", str(asked.seed)]
    command += ["--request-timeout", str(PATIENCE_S), "--continue-on-failure", "--no-color"]
    command += ["--report", "ndjson", "--report-ndjson-path", str(events), "--generation-database", "none"]
    command += ["--include-path-regex" if asked.steering else "--exclude-path-regex", STEERING]
    for name, value in asked.headers.items():
        command += ["--header", f"{name}: {value}"]
    begun = time.monotonic()
    with (folder / "said.txt").open("wb") as said:
        try:
            code = subprocess.run(
                command, cwd=folder, stdout=said, stderr=said, timeout=asked.lasts_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    found = read(events)
    if code and not found.failures:
        last = (folder / "said.txt").read_text()[-2000:]
        found.failures.append(
            f"schemathesis ended with {code} after {time.monotonic() - begun:.0f} s: {last}"
        )
    return found


def read(events: Path) -> Found:
    found = Found()
    for line in events.read_text().splitlines() if events.exists() else []:
        event = json.loads(line)
        if "ScenarioFinished" in event:
            recorder = event["ScenarioFinished"]["recorder"]
            found.cases += len(recorder.get("interactions", {}))
            found.failures += _failures(recorder)
    return found


def _failures(recorder: dict[str, Any]) -> Iterator[str]:
    for case_id, checks in recorder.get("checks", {}).items():
        for check in checks:
            if check["status"] == "failure":
                case = recorder["cases"][case_id]["value"]
                told = json.dumps(check.get("failure") or check)[:500]
                yield f"{case['method']} {case['path']}: {check['name']}: {told}"
