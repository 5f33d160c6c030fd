"""Records what vLLM answers into tests/workers/engines/fixtures/vllm, for the tests that run without one.

    .venv/bin/python tests/vllm/record.py

Bodies are as they came, but for the model folder's path. `index.json` says what was asked and which status it had.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from deploy.vllm_cpu.server import MODEL, Vllm, vllm_up

FOLDER = Path(__file__).parents[1] / "workers" / "engines" / "fixtures" / "vllm"
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
PLAIN = ("--scheduling-policy", "fcfs", "--no-enable-prompt-tokens-details", "--max-num-queued-reqs", "1")
RULES = " ".join(
    f"Rule {number}: answer politely, and never quote rule {number + 7}." for number in range(110)
)
HI = [{"role": "user", "content": "Name three rivers."}]
RULED = [{"role": "system", "content": RULES}, *HI]
ENDLESS = {"messages": HI, "max_tokens": 4000, "ignore_eos": True}


@dataclass
class Recorder:
    """What one server says."""

    server: Vllm
    index: dict[str, dict[str, Any]]
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.server.url, timeout=300)

    def get(self, name: str, path: str) -> None:
        self._keep(name, self.client.get(path), {"get": path})

    def post(self, name: str, path: str, body: dict[str, Any]) -> None:
        self._keep(name, self.client.post(path, json={"model": MODEL} | body), {"post": path, "body": body})

    @contextmanager
    def running(self, *bodies: dict[str, Any]) -> Iterator[None]:
        """While these are answered; then their client hangs up."""
        streams = [
            self.client.stream("POST", CHAT, json={"model": MODEL, "stream": True} | body) for body in bodies
        ]
        for stream in streams:
            stream.__enter__()
        yield
        for stream in streams:
            stream.__exit__(None, None, None)

    def until(self, metric: str, value: float) -> None:
        while self.server.metrics()[metric] != value:
            time.sleep(0.05)

    def _keep(self, name: str, answer: httpx.Response, asked: dict[str, Any]) -> None:
        folder = str(self.server.folder)
        (FOLDER / name).write_text(answer.text.replace(folder, f"/models/{MODEL}"))
        if len(json.dumps(asked)) > 1000:
            asked["body"] = "long: see tests/vllm/record.py"
        self.index[name] = asked | {
            "status": answer.status_code,
            "content_type": answer.headers.get("Content-Type"),
            "retry_after": answer.headers.get("Retry-After"),
            "server": [*self.server.options],
        }


def record_pages(recorder: Recorder) -> None:
    recorder.get("metrics_fresh.txt", "/metrics")
    recorder.get("health.txt", "/health")
    recorder.get("version.json", "/version")
    recorder.get("models.json", "/v1/models")
    recorder.get("load.json", "/load")
    recorder.get("server_info.json", "/server_info")


def record_answers(recorder: Recorder) -> None:
    short: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
    streamed = short | {"stream": True, "stream_options": {"include_usage": True}}
    recorder.post("chat.json", CHAT, short | {"messages": HI, "priority": 2})
    recorder.post("chat_stream.txt", CHAT, streamed | {"messages": HI})
    recorder.post("completion.json", COMPLETIONS, short | {"prompt": "Once"})
    recorder.post("completion_stream.txt", COMPLETIONS, streamed | {"prompt": "Once"})
    recorder.post("chat_long_first.json", CHAT, short | {"messages": RULED})
    recorder.post("chat_long_again.json", CHAT, short | {"messages": RULED})
    recorder.post("chat_long_salted.json", CHAT, short | {"messages": RULED, "cache_salt": "tenant-a"})
    recorder.post("chat_long_again_stream.txt", CHAT, streamed | {"messages": RULED})


def record_refusals(recorder: Recorder) -> None:
    recorder.post("error_prompt_too_long.json", CHAT, {"messages": [HI[0] | {"content": "word " * 9000}]})
    recorder.post("error_max_tokens.json", CHAT, {"messages": HI, "max_tokens": 9000})
    recorder.post("error_unknown_model.json", CHAT, {"messages": HI, "model": "nope"})
    recorder.post("error_empty_salt.json", CHAT, {"messages": HI, "cache_salt": ""})
    recorder.post("error_priority_text.json", CHAT, {"messages": HI, "priority": "high"})
    recorder.post("error_embeddings.json", EMBEDDINGS, {"input": "text"})


def record_load(recorder: Recorder) -> None:
    """Two run, one waits; then all clients hang up, and nothing runs any more."""
    with recorder.running(*[ENDLESS] * 3):
        recorder.until("num_requests_waiting", 1)
        recorder.get("metrics_running.txt", "/metrics")
    recorder.until("num_requests_running", 0)


def record_plain(recorder: Recorder) -> None:
    """A server that keeps the order of arrival, gives no details, sheds load, and is in vLLM's development mode."""
    recorder.get("server_info_development.json", "/server_info?config_format=json")
    page = FOLDER / "server_info_development.json"
    kept = json.loads(page.read_text())["vllm_config"]["scheduler_config"]  # the rest describes this machine
    page.write_text(json.dumps({"vllm_config": {"scheduler_config": kept}}))
    recorder.post("chat_priority_under_fcfs.json", CHAT, {"messages": HI, "priority": 2, "max_tokens": 4})
    recorder.post("chat_long_again_no_details.json", CHAT, {"messages": RULED, "max_tokens": 4})
    with recorder.running(ENDLESS):
        recorder.until("num_requests_running", 1)
        recorder.post("error_busy.json", CHAT, {"messages": HI, "max_tokens": 4})
        recorder.post("error_busy_stream.json", CHAT, {"messages": HI, "max_tokens": 4, "stream": True})


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    index: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as logs:
        with vllm_up("--max-num-seqs", "2", log=Path(logs) / "priority") as server:
            recorder = Recorder(server, index)
            record_pages(recorder)
            record_answers(recorder)
            record_refusals(recorder)
            record_load(recorder)
        with vllm_up(*PLAIN, log=Path(logs) / "plain", VLLM_SERVER_DEV_MODE="1") as server:
            record_plain(Recorder(server, index))
    (FOLDER / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
