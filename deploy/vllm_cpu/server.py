"""A vLLM of one's own for a test or a benchmark, on a free port of loopback."""

import os
import re
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from api.cli.redis_server import free_port

HERE = Path(__file__).resolve().parent
MODEL = "smollm2"
READY_S = 300.0
STOP_S = 30.0
STEP_S = 0.1
SAMPLE = re.compile(r"^(?P<name>[a-z_:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)


class VllmMissing(RuntimeError):
    """It is not installed; the message says how to."""


class VllmFailed(RuntimeError):
    """It did not start; the message has the end of its log."""


@dataclass
class Vllm:
    """`process` leads a process group: the server, the engine and the worker are three."""

    port: int
    options: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        """Of the model."""
        return Path(os.environ.get("VLLM_VENV") or HERE.parents[1] / ".venv-vllm") / MODEL

    def start(self) -> None:
        """Returns when it answers, after 34 s on two quiet cores. Raises VllmMissing, VllmFailed."""
        if not self.folder.is_dir():
            raise VllmMissing(f"there is no {self.folder}: `make vllm` installs vLLM (2.7 GB of disk)")
        argv = [str(HERE / "serve.sh"), "--port", str(self.port), *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, env=os.environ | self.environment, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + READY_S
        while self.get("/health", otherwise=None) != "":
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise VllmFailed(f"vLLM did not start: {self.log.read_text()[-3000:]}")
            time.sleep(STEP_S)

    def kill(self) -> None:
        """kill -9 of all of it, as a crash of its machine."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def get(self, path: str, *, otherwise: str | None = "") -> str | None:
        """The page, `otherwise` if there is none."""
        try:
            answer = httpx.get(self.url + path, timeout=10)
        except httpx.TransportError:
            return otherwise
        return answer.text if answer.is_success else otherwise

    def metrics(self) -> dict[str, float]:
        """By name without the `vllm:`, summed over label sets (there is one engine)."""
        found: dict[str, float] = defaultdict(float)
        for sample in SAMPLE.finditer(self.get("/metrics") or ""):
            found[sample["name"].removeprefix("vllm:")] += float(sample["value"])
        return found


@contextmanager
def vllm_up(*options: str, log: Path, **environment: str) -> Iterator[Vllm]:
    """With options of `vllm serve` beside those of serve.sh. Raises VllmMissing, VllmFailed."""
    server = Vllm(free_port(), options, log, environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()
