"""What callers notice of failing engines: all large workers, or their engines, killed at once; one engine of four with 15 % errors.

Real processes: Redis, the API, workers, and simulated engines behind HTTP. Counted are the callers' answers, and the pool's attempts.

    python benchmarks/outage.py [--quick] [--json FILE]
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import redis
from figures import Figure, arguments, report
from own_redis import own_redis

from api.cli.redis_server import free_port
from broker.keys import PoolKeys

CALLERS = 16
ERROR_RATE = 0.15
SIM = ("--speed", "4", "--output-tokens", "16", "--max-num-seqs", "8")
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
UP_S = 60.0


@dataclass(slots=True)
class Heard:
    """Answers: when they came (seconds after the beginning), their status, and the pool that they were degraded from."""

    answers: list[tuple[float, int, str]] = field(default_factory=list)

    def since(self, at: float) -> list[tuple[float, int, str]]:
        return [answer for answer in self.answers if answer[0] >= at]


class Fleet:
    """Processes of one Headway, by name (`engine large 0`, `worker large 0`, `api`)."""

    def __init__(self, folder: Path, redis_url: str, **settings: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.redis_url = redis_url
        self.redis: Any = redis.Redis.from_url(redis_url)
        self.engines: list[str] = []  # their addresses
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        config = folder / "headway.yaml"
        config.write_text("models: [{pool: small}, {pool: large, fallback: small}]\n")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        self._env = inherited | settings
        self._env |= {
            "HEADWAY_REDIS_URL": redis_url,
            "HEADWAY_HOME": str(folder),
            "HEADWAY_CONFIG": str(config),
        }
        self._env |= {"HEADWAY_PORT": self.url.rpartition(":")[2], "HEADWAY_LOG_LEVEL": "error"}

    def serve(self, pool: str, number: int, *options: str, worker: Sequence[str] = ()) -> int:
        """A simulated engine with `options`, and its worker with those of `worker`, whose process id it is."""
        port = str(free_port())
        self.engines.append(f"http://127.0.0.1:{port}")
        self._start(f"engine {pool} {number}", "api.cli.main", "sim-engine", "--port", port, *SIM, *options)
        engine = ("--engine", self.engines[-1], "--dialect", "vllm")
        return self._start(f"worker {pool} {number}", "workers.main", "--pool", pool, *engine, *worker)

    def open(self) -> None:
        self._start("api", "api.cli.serve")

    def open_another(self) -> str:
        """A second API process; its address."""
        port = str(free_port())
        self._start("api 2", "api.cli.serve", HEADWAY_PORT=port)
        return f"http://127.0.0.1:{port}"

    def kill(self, names: str) -> None:
        """SIGKILL for all whose name begins so."""
        for name, process in self._processes.items():
            if name.startswith(names):
                process.kill()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self.redis.close()

    def stats(self, pool: str) -> Mapping[str, float]:
        found = self.redis.hgetall(PoolKeys(pool).named("stats"))
        return {name.decode(): float(value) for name, value in found.items()}

    def _start(self, name: str, module: str, *words: str, **settings: str) -> int:
        command = [sys.executable, "-m", module, *words]
        quiet = subprocess.DEVNULL
        env = self._env | settings
        process = self._processes[name] = subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet)
        return process.pid


@contextmanager
def fleet(sizes: Mapping[str, tuple[tuple[str, ...], ...]], **settings: str) -> Iterator[Fleet]:
    """`sizes`: by pool, the options of each engine."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        this = Fleet(folder, stack.enter_context(own_redis()), **settings)
        stack.callback(this.stop)
        for pool, engines in sizes.items():
            for number, options in enumerate(engines):
                this.serve(pool, number, *options)
        this.open()
        yield this


async def until(condition: Callable[[], bool], *, what: str) -> None:
    give_up = time.monotonic() + UP_S
    while not condition():
        if time.monotonic() > give_up:
            raise RuntimeError(f"not within {UP_S:.0f} s: {what}")
        await asyncio.sleep(0.1)


async def all_up(this: Fleet, http: aiohttp.ClientSession, workers: Mapping[str, int]) -> None:
    def there() -> bool:
        return all(this.redis.zcard(PoolKeys(pool).named("workers")) == n for pool, n in workers.items())

    await until(there, what="all workers are there")
    answered = False
    for _ in range(int(UP_S * 10)):
        try:
            async with http.post(f"{this.url}/v1/chat/completions", json=BODY | {"model": "large"}) as answer:
                answered = answer.status == 200 and "X-Headway-Degraded" not in answer.headers
        except aiohttp.ClientError:
            answered = False
        if answered:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the API does not answer")


async def ask_on(this: Fleet, http: aiohttp.ClientSession, *, heard: Heard, pause_s: float) -> None:
    """One caller, until cancelled. Who is refused comes again a second later."""
    begun = time.monotonic()
    while True:
        async with http.post(f"{this.url}/v1/chat/completions", json=BODY | {"model": "large"}) as answer:
            await answer.read()
            degraded = answer.headers.get("X-Headway-Degraded", "")
            heard.answers.append((time.monotonic() - begun, answer.status, degraded))
        await asyncio.sleep(pause_s if answer.status == 200 else 1.0)


async def outage(killed: str, *, quick: bool) -> list[Figure]:
    """All of the large pool's workers, or engines, killed at once."""
    lasts_s, before_s = (25.0 if quick else 60.0), 2.0
    heard = Heard()
    with fleet({"small": ((), ()), "large": ((), ())}) as this:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await all_up(this, http, {"small": 2, "large": 2})
            callers = [
                asyncio.create_task(ask_on(this, http, heard=heard, pause_s=0.05)) for _ in range(CALLERS)
            ]
            await asyncio.sleep(before_s)
            this.kill(f"{killed} large")
            await asyncio.sleep(lasts_s)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
    after = heard.since(before_s)
    first_s = min((at - before_s for at, status, from_ in after if status == 200 and from_), default=lasts_s)
    answered = sum(status == 200 for _, status, _ in after) / len(after)
    setting = f"{CALLERS} callers, all {killed}s of the large pool killed (SIGKILL), {lasts_s:.0f} s"
    return [
        Figure(f"outage.first_degraded_s.{killed}", round(first_s, 1), "s", None, setting),
        Figure(f"outage.answered_share.{killed}", round(answered, 4), "share", None, setting),
        Figure(
            f"outage.refused.{killed}", len(after) - round(answered * len(after)), "answers", None, setting
        ),
    ]


async def failing(share: float, *, quick: bool) -> tuple[float, float, float]:
    """Of a pool of four with one bad engine: seconds until it was out, share of attempts that failed after that, and of the callers'."""
    lasts_s = 20.0 if quick else 60.0
    bad = ("--error-rate", str(ERROR_RATE))
    heard, settings = Heard(), {"HEADWAY_BREAKER_SHARE": str(share)}
    with fleet({"small": ((),), "large": (bad, (), (), ())}, **settings) as this:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await all_up(this, http, {"small": 1, "large": 4})
            callers = [
                asyncio.create_task(ask_on(this, http, heard=heard, pause_s=0.0)) for _ in range(CALLERS)
            ]
            begun = time.monotonic()
            if share:
                await until(
                    lambda: this.stats("large").get("breaker:opened", 0) >= 1, what="the breaker opens"
                )
            out_s, before = time.monotonic() - begun, this.stats("large")
            await asyncio.sleep(lasts_s)
            after = this.stats("large")
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
    errors = after.get("retried:error", 0) - before.get("retried:error", 0)
    done = after.get("succeeded:0", 0) - before.get("succeeded:0", 0)
    lost = sum(status != 200 for _, status, _ in heard.answers) / len(heard.answers)
    return out_s, errors / (errors + done), lost


async def breaker(*, quick: bool) -> list[Figure]:
    out_s, errors, lost = await failing(0.1, quick=quick)
    _, without, lost_without = await failing(0.0, quick=quick)
    setting = (
        f"{CALLERS} callers, 4 engines, one fails {ERROR_RATE:.0%} of its requests; baseline: no breaker"
    )
    return [
        Figure("breaker.out_after_s", round(out_s, 1), "s", None, setting),
        Figure("breaker.pool_error_share", round(errors, 5), "share", round(without, 5), setting),
        Figure("breaker.callers_error_share", round(lost, 5), "share", round(lost_without, 5), setting),
    ]


async def main() -> None:
    args = arguments(__doc__).parse_args()
    figures = await outage("engine", quick=args.quick)
    figures += await outage("worker", quick=args.quick)
    figures += await breaker(quick=args.quick)
    report(figures, args.json)


if __name__ == "__main__":
    asyncio.run(main())
