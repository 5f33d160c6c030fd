"""How exact a limit is when four API processes let in requests of one key, and Redis is killed meanwhile.

Clients ask more often than the limit allows, in turns at four processes. Counted is what they were let in: within any minute
no more than the limit, and as many as it allows. Once with Redis left alone, once with it killed (SIGKILL) and started again.

    python benchmarks/limits.py [--quick] [--json FILE]
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from figures import Figure, arguments, report
from own_redis import started

from api.cli.redis_server import RedisServer, find_binary, free_port

PROCESSES = 4
KEY = "bench-key"
MINUTE_S = 60.0
BACK_S = 60.25  # what was taken at the beginning of a slot comes back after so long at most


@dataclass(frozen=True, slots=True)
class Plan:
    """`limit`: requests a minute. `rate`: asked a second, of all processes. `minutes`: windows that are counted."""

    limit: int
    rate: float
    minutes: int
    last_s: float


@dataclass(slots=True)
class Counts:
    """`admitted`: when, seconds after the beginning. `half` is set when that many were."""

    half_of: int
    half: asyncio.Event = field(default_factory=asyncio.Event)
    admitted: list[float] = field(default_factory=list)
    refused: int = 0
    away: int = 0


class Server:
    """A redis-server that can be killed and comes back with what it had written."""

    def __init__(self, folder: Path) -> None:
        self._server = RedisServer(binary=find_binary(), port=free_port(), directory=folder)
        self._process = started(self._server, [])
        self.url = self._server.url

    def restart(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = started(self._server, [])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def api_processes(redis_url: str, folder: Path, *, limit: int) -> Iterator[list[str]]:
    """Their addresses."""
    config = folder / "headway.yaml"
    config.write_text(
        f"models: [{{pool: small}}]\ntenants: [{{name: bench, keys: [{KEY}], limits: {{requests_per_minute: {limit}}}}}]\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    env |= {
        "HEADWAY_REDIS_URL": redis_url,
        "HEADWAY_CONFIG": str(config),
        "HEADWAY_HOME": str(folder / "home"),
    }
    env |= {"HEADWAY_MAX_QUEUED": "1000000", "HEADWAY_LOG_LEVEL": "error"}
    ports = [free_port() for _ in range(PROCESSES)]
    command = [sys.executable, "-m", "api.cli.serve"]
    processes = [
        subprocess.Popen(command, env=env | {"HEADWAY_PORT": str(port)}, stderr=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    give_up = time.monotonic() + 30
    while not await answers(http, url):
        if time.monotonic() > give_up:
            raise RuntimeError(f"{url} does not answer")
        await asyncio.sleep(0.05)


async def answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/healthz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def one(http: aiohttp.ClientSession, url: str, *, counts: Counts, begun: float) -> None:
    body = {"model": "small", "prompt": "hi", "class": "P1"}
    asked_s = time.monotonic() - begun
    async with http.post(f"{url}/v1/jobs", json=body, headers={"Authorization": f"Bearer {KEY}"}) as answer:
        if answer.status == 202:
            counts.admitted.append(asked_s)
            if 2 * len(counts.admitted) >= counts.half_of:
                counts.half.set()
        elif answer.status == 429:
            counts.refused += 1
        else:
            counts.away += 1


async def ask_all(urls: list[str], plan: Plan, *, server: Server | None) -> Counts:
    """`server`: is killed when half of the limit is used."""
    counts, tasks = Counts(plan.limit), set[asyncio.Task[None]]()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as http:
        await asyncio.gather(*(ready(http, url) for url in urls))
        begun, turns = time.monotonic(), itertools.cycle(urls)
        killer = asyncio.create_task(kill_at_half(server, counts)) if server else None
        for number in itertools.count():
            at = number / plan.rate
            if at > plan.last_s:
                break
            await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
            task = asyncio.create_task(one(http, next(turns), counts=counts, begun=begun))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks, return_exceptions=True)
        if killer is not None:
            await killer
    return counts


async def kill_at_half(server: Server, counts: Counts) -> None:
    await counts.half.wait()
    await asyncio.to_thread(server.restart)


def worst(counts: Counts, plan: Plan) -> float:
    """The largest share by which a minute missed the limit: counted one after the other, and (too many) in any."""
    times, shares = sorted(counts.admitted), []
    for minute in range(plan.minutes):
        found = sum(minute * BACK_S <= at < (minute + 1) * BACK_S for at in times)
        shares.append(abs(found - plan.limit) / plan.limit)
    first = 0
    for last, at in enumerate(times):
        while times[first] <= at - MINUTE_S:
            first += 1
        shares.append(max(0, last - first + 1 - plan.limit) / plan.limit)
    return max(shares)


def measure(plan: Plan, *, kill: bool) -> Figure:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "redis").mkdir()
        server = Server(folder / "redis")
        stack.callback(server.stop)
        urls = stack.enter_context(api_processes(server.url, folder, limit=plan.limit))
        counts = asyncio.run(ask_all(urls, plan, server=server if kill else None))
    said = (
        f"{PROCESSES} API processes, limit {plan.limit} a minute, {plan.rate:g} asked a second for {plan.last_s:g} s: "
        f"{len(counts.admitted)} let in, {counts.refused} refused, {counts.away} answered 503"
    )
    name = "limits.error_share.redis_killed" if kill else "limits.error_share"
    return Figure(name, round(worst(counts, plan), 5), "share of the limit", None, said)


def main() -> None:
    options = arguments(__doc__).parse_args()
    plan = Plan(600, 60.0, 1, 18.0) if options.quick else Plan(2400, 100.0, 2, 120.0)
    report([measure(plan, kill=kill) for kill in (False, True)], options.json)


if __name__ == "__main__":
    main()
