"""A whole Headway to be fuzzed: `headway up` without keys, and a second API process beside it that wants one.

Both serve the pools `small` and `large` (and the route `auto` between them), `spare`, which only steering is tried on, and
`broken`, for dead letters. The engines are simulated ones that answer within milliseconds; that of `broken` always fails.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from api.cli.redis_server import free_port
from tests.e2e.stack import Stack

KEY = "fuzz-key"
TENANT = f"{{name: fuzz, keys: [{KEY}], admin: true, limits: {{requests_per_minute: 1000000}}}}"
SIM = ("--speed", "1000", "--output-tokens", "4", "--model", "sim")
SETTINGS = {
    "HEADWAY_REQUEST_TIMEOUT_S": "5",  # what waits for a paused pool is answered
    "HEADWAY_LOG_LEVEL": "debug",
    "HEADWAY_PREDICTOR": "simple",
    "HEADWAY_MAX_ENGINE_ERRORS": "1",
    "HEADWAY_RETRY_BASE_S": "0.05",
    "HEADWAY_BREAKER_SHARE": "0",
}
UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """`open`, `keyed`: addresses of the two APIs."""

    open: str
    keyed: str
    stack: Stack

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEY}"}


@contextmanager
def fuzzed_headway() -> Iterator[Target]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="headway-fuzz-")))
        models = _models(_engine(stack), failing=_engine(stack, "--error-rate", "1"))
        config = folder / "headway.yaml"
        config.write_text(models)
        home = folder / "home"
        home.mkdir()
        headway = Stack.start(home, **SETTINGS, HEADWAY_CONFIG=str(config))
        stack.callback(headway.stop)
        keyed, port = folder / "keyed.yaml", free_port()
        keyed.write_text(models + f"tenants: [{TENANT}]\n")
        redis_url = next(part["url"] for part in headway.parts if part["kind"] == "redis")
        more = {"HEADWAY_CONFIG": str(keyed), "HEADWAY_PORT": str(port), "HEADWAY_REDIS_URL": redis_url}
        env = _clean() | SETTINGS | {"HEADWAY_HOME": str(home)} | more
        _start(stack, ["api.cli.serve"], env=env, log=home / "logs" / "keyed.log")
        target = Target(headway.url, f"http://127.0.0.1:{port}", headway)
        _until(lambda: httpx.get(f"{target.keyed}/readyz").status_code == 200)
        _until(lambda: httpx.get(f"{target.open}/readyz").status_code == 200)
        yield target


def _engine(stack: ExitStack, *options: str) -> str:
    """Its address."""
    port = free_port()
    _start(stack, ["api.cli.main", "sim-engine", "--port", str(port), *SIM, *options], env=_clean())
    return f"http://127.0.0.1:{port}"


def _models(engine: str, *, failing: str) -> str:
    engines = dict.fromkeys(("small", "large", "spare"), engine) | {"broken": failing}
    pools = (
        f"  - {{pool: {pool}, engine: '{url}', dialect: vllm, slots: 16}}\n" for pool, url in engines.items()
    )
    return f"models:\n{''.join(pools)}routes: [{{name: auto, small: small, large: large}}]\n"


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}


def _start(stack: ExitStack, words: list[str], *, env: dict[str, str], log: Path | None = None) -> None:
    said = stack.enter_context(log.open("wb")) if log else subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-m", *words], env=env, stdout=said, stderr=said)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + UP_S
    while not _holds(condition):
        if time.monotonic() > give_up:
            raise RuntimeError(f"not up within {UP_S:.0f} s")
        time.sleep(0.1)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except httpx.HTTPError:
        return False
