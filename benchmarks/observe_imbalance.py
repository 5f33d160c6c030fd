"""How soon a planted imbalance is named: one worker gets all long jobs; a worker that is three times slower joins. Used by `observe.py`.

Real workers on simulated engines, half busy with short chats. Watched are `/v1/fleet` and `/metrics`, and, where `prometheus` is on PATH,
the alert of deploy/prometheus/rules.yml in a Prometheus that runs as its configuration says.
"""

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from figures import Figure
from outage import Fleet, all_up, fleet, until

from api.cli.redis_server import free_port
from broker.keys import PoolKeys

DEPLOY = Path(__file__).parents[1] / "deploy" / "prometheus"
POOL = "large"
EVEN = 3  # workers, of eight slots
ENGINE = ("--speed", "0.25")
SLOTS = ("--slots", "8")
OTHERS = ("--classes", "P0,P2,P3")
CALLERS = 14
SHORT = {"model": POOL, "max_tokens": 48, "ignore_eos": True, "messages": [{"role": "user", "content": "hi"}]}
LONG = SHORT | {"max_tokens": 4000, "class": "P1"}
LONG_JOBS = 4
CALM_S = 8.0  # of even load before
PATIENCE_S = 40.0
LOOK_S = 0.25
AWAY = (aiohttp.ClientError, TimeoutError, KeyError)

Look = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Planted:
    """The worker with that process id, for that reason."""

    pid: int
    reason: str

    def is_in(self, labels: Mapping[str, str]) -> bool:
        return f"-{self.pid}-" in labels["worker"] and labels["reason"] == self.reason


@contextmanager
def prometheus(target: str) -> Iterator[str]:
    """Its address; "" where it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        yield ""
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DEPLOY / "rules.yml", folder)
        config = (DEPLOY / "prometheus.yml").read_text().replace("127.0.0.1:8000", target)
        (Path(folder) / "prometheus.yml").write_text(config)
        address = f"127.0.0.1:{free_port()}"
        command = [
            program,
            "--config.file",
            f"{folder}/prometheus.yml",
            "--storage.tsdb.path",
            f"{folder}/data",
        ]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            [*command, "--web.listen-address", address], cwd=folder, stdout=quiet, stderr=quiet
        )
        try:
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()


async def chat_on(url: str, http: aiohttp.ClientSession) -> None:
    """One caller, until cancelled."""
    while True:
        async with http.post(f"{url}/v1/chat/completions", json=SHORT | {"stream": True}) as answer:
            await answer.read()


def looks(this: Fleet, http: aiohttp.ClientSession, alerts: str, *, planted: Planted) -> dict[str, Look]:
    async def in_fleet() -> bool:
        async with http.get(f"{this.url}/v1/fleet") as answer:
            pools = (await answer.json())["pools"]
        return any(planted.is_in(cause) for pool in pools for cause in pool["balance_detail"]["causes"])

    async def in_metrics() -> bool:
        async with http.get(f"{this.url}/metrics") as page:
            lines = [
                line for line in (await page.text()).splitlines() if line.startswith("headway_balance_cause{")
            ]
        return any(f"-{planted.pid}-" in line and f'reason="{planted.reason}"' in line for line in lines)

    async def in_alerts() -> bool:
        async with http.get(f"{alerts}/api/v1/alerts") as answer:
            firing = (await answer.json())["data"]["alerts"]
        named = [alert["labels"] for alert in firing if alert["state"] == "firing"]
        return any(planted.is_in(labels) for labels in named if labels["alertname"] == "HeadwayUnbalanced")

    found: dict[str, Look] = {"fleet": in_fleet, "metrics": in_metrics}
    return found | ({"alert": in_alerts} if alerts else {})


async def named_after_s(look: Look, *, since: float) -> float:
    """Raises RuntimeError if it is not within PATIENCE_S."""
    while time.monotonic() - since < PATIENCE_S:
        try:
            if await look():
                return time.monotonic() - since
        except AWAY:
            pass  # it is not up yet
        await asyncio.sleep(LOOK_S)
    raise RuntimeError(f"the planted imbalance was not named within {PATIENCE_S:.0f} s")


async def there(this: Fleet, *, workers: int) -> None:
    key = PoolKeys(POOL).named("workers")
    await until(lambda: this.redis.zcard(key) == workers, what=f"{workers} workers are there")


async def named(
    this: Fleet, http: aiohttp.ClientSession, alerts: str, *, plant: Callable[[], Awaitable[Planted]]
) -> dict[str, float]:
    """Seconds from the planting until each place names it."""
    planted = await plant()
    since, places = time.monotonic(), looks(this, http, alerts, planted=planted)
    took = await asyncio.gather(*(named_after_s(look, since=since) for look in places.values()))
    return dict(zip(places, took, strict=True))


async def both(this: Fleet, http: aiohttp.ClientSession, *, pid: int) -> list[dict[str, float]]:
    """`pid`: of the only worker that takes P1, and so gets jobs that are 80 times as long as the others'."""

    async def long_jobs() -> Planted:
        for _ in range(LONG_JOBS):
            async with http.post(f"{this.url}/v1/jobs", json=LONG) as answer:
                answer.raise_for_status()
        return Planted(pid, "long_jobs")

    async def slow_worker() -> Planted:
        """Its time begins with its first heartbeat."""
        slow = this.serve(POOL, EVEN + 1, *ENGINE, "--slow-factor", "3", worker=(*SLOTS, *OTHERS))
        await there(this, workers=EVEN + 2)
        return Planted(slow, "slow")

    callers = [asyncio.create_task(chat_on(this.url, http)) for _ in range(CALLERS)]
    with prometheus(this.url.removeprefix("http://")) as alerts:
        try:
            await asyncio.sleep(CALM_S)
            return [await named(this, http, alerts, plant=plant) for plant in (long_jobs, slow_worker)]
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)


async def one_round() -> list[dict[str, float]]:
    """In an even pool first the long jobs, then the slow worker, which joins it."""
    with fleet({"small": (ENGINE,)}, HEADWAY_PREDICTOR="simple") as this:
        for number in range(EVEN):
            this.serve(POOL, number, *ENGINE, worker=(*SLOTS, *OTHERS))
        pid = this.serve(POOL, EVEN, *ENGINE, worker=SLOTS)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await all_up(this, http, {"small": 1, POOL: EVEN + 1})
            return await both(this, http, pid=pid)


async def imbalance(*, quick: bool) -> list[Figure]:
    """The latest of all places, over both imbalances; more rounds where there is time."""
    rounds = 1 if quick else 3
    setting = (
        f"{EVEN + 1} workers of 8 slots on simulated engines, {CALLERS} callers; {rounds} round(s) of {LONG_JOBS} long P1 jobs on one "
        "worker, then of one more worker that is 3x slower; seconds until it is named"
    )
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for found in await one_round():
            for place, seconds in found.items():
                took.setdefault(place, []).append(seconds)
    worst = {place: round(max(seconds), 2) for place, seconds in took.items()}
    return [
        Figure(
            "observe.imbalance_named_s",
            max(worst.values()),
            "s",
            None,
            f"{setting}, by all of {', '.join(worst)}",
        ),
        *(
            Figure(f"observe.imbalance_named_s.{place}", value, "s", None, setting)
            for place, value in worst.items()
        ),
    ]
