"""What is done to a part, and how long it takes until jobs go through it again."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.client import Client
from tests.chaos.judge import Finding, Job
from tests.chaos.system import POOLS, System
from tests.chaos.traffic import SHORT, Traffic
from tests.conditions import wait_until

Do = Callable[[System, str], Awaitable[None]]
PROBE_EVERY_S = 0.2
GIVE_UP_S = 90.0
ZOMBIE_S, CUT_S, STALL_S, SLOW_S, SICK_S = 5.0, 6.0, 5.0, 4.0, 6.0
WORKERS = tuple(f"worker-{name}" for name in POOLS)
ENGINES = tuple(f"engine-{name}" for name in POOLS)
APIS = ("api-0", "api-1")


async def kill(this: System, part: str) -> None:
    this.signal(part, signal.SIGKILL)


async def drain(this: System, part: str) -> None:
    this.signal(part, signal.SIGTERM)


async def freeze(this: System, part: str) -> None:
    """For longer than its lease: it wakes up as a zombie."""
    this.signal(part, signal.SIGSTOP)
    await asyncio.sleep(ZOMBIE_S)
    this.signal(part, signal.SIGCONT)


async def cut(this: System, part: str) -> None:
    proxy = this.proxies[part.removeprefix("engine-")]
    proxy.cut()
    await asyncio.sleep(CUT_S)
    proxy.let_pass()


async def stall(this: System, part: str) -> None:
    proxy = this.proxies[part.removeprefix("engine-")]
    proxy.stall()
    await asyncio.sleep(STALL_S)
    proxy.let_pass()


async def slow(this: System, part: str) -> None:
    proxy = this.proxies[part.removeprefix("engine-")]
    proxy.slow(0.05)
    await asyncio.sleep(SLOW_S)
    proxy.let_pass()


async def sicken(this: System, part: str) -> None:
    """Its place is taken by an engine that errs, hangs, is slow and writes garbage."""
    proxy = this.proxies[part.removeprefix("engine-")]
    well, proxy.target = proxy.target, ("127.0.0.1", this.sick_port)
    proxy.cut()
    proxy.let_pass()
    await asyncio.sleep(SICK_S)
    proxy.target = well
    proxy.cut()
    proxy.let_pass()


@dataclass(frozen=True, slots=True)
class Fault:
    """`ends`: the part is another process afterwards."""

    name: str
    parts: tuple[str, ...]
    do: Do
    ends: bool = False


FAULTS = (
    Fault("worker_killed", WORKERS, kill, ends=True),
    Fault("worker_drained", WORKERS, drain, ends=True),
    Fault("worker_frozen", WORKERS, freeze),
    Fault("engine_killed", ENGINES, kill, ends=True),
    Fault("engine_cut", ENGINES, cut),
    Fault("engine_stalled", ENGINES, stall),
    Fault("engine_sick", ENGINES, sicken),
    Fault("api_killed", APIS, kill, ends=True),
    Fault("api_drained", APIS, drain, ends=True),
    Fault("celery_killed", ("celery",), kill, ends=True),
    Fault("celery_drained", ("celery",), drain, ends=True),
    Fault("rq_killed", ("rq",), kill, ends=True),
    Fault("redis_killed", ("redis",), kill, ends=True),
    Fault("redis_frozen", ("redis",), freeze),
    Fault("redis_cut", ("redis",), cut),
    Fault("redis_stalled", ("redis",), stall),
    Fault("redis_slow", ("redis",), slow),
)


def succeeded(job: Job) -> bool:
    return bool(job.sights) and job.sights[-1].status == "succeeded"


class Tormentor:
    """Does one fault after the other. `took_s`: by fault, until the first job after it went through the part again; `stuck`: where none did."""

    def __init__(self, this: System, client: Client, traffic: Traffic, *, seed: int) -> None:
        self.took_s: dict[str, list[float]] = {fault.name: [] for fault in FAULTS}
        self.stuck: list[Finding] = []
        self._this = this
        self._client = client
        self._traffic = traffic
        self._rng = random.Random(seed)

    async def run(self, *, say: Callable[[str], None], enough: Callable[[], bool]) -> None:
        """Every fault comes once before any comes twice. Looks between faults whether it is enough."""
        while True:
            for fault in self._rng.sample(FAULTS, len(FAULTS)):
                if enough():
                    return
                part = self._rng.choice(fault.parts)
                took_s = await self._once(fault, part)
                self.took_s[fault.name].append(took_s)
                say(f"  {fault.name} ({part}): {took_s:.1f} s")
                await asyncio.sleep(self._rng.uniform(0.5, 2.0))

    async def _once(self, fault: Fault, part: str) -> float:
        """Seconds from the blow, or from the end of a fault that lasts, until a job that was sent after it has succeeded."""
        pid, began = self._this.pid(part), time.monotonic()
        await fault.do(self._this, part)
        try:
            if fault.ends:  # what a process that drains still answers is no recovery
                await self._until(lambda: self._this.pid(part) != pid)
            else:
                began = time.monotonic()
            await self._until_through(part)
            took_s = time.monotonic() - began
            await self._until(lambda: self._this.ready(part))
        except (AssertionError, TimeoutError) as error:
            self.stuck.append(Finding("not_settled", f"{part} after {fault.name}", f"is not back: {error}"))
            took_s = time.monotonic() - began
        return took_s

    @staticmethod
    async def _until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
        await wait_until(condition, timeout_s=GIVE_UP_S)

    async def _until_through(self, part: str) -> None:
        """Sends job after job, without waiting for each. Raises TimeoutError."""
        through, sent = asyncio.Event(), set[asyncio.Task[None]]()

        async def send() -> None:
            with contextlib.suppress(TimeoutError):
                if await self._goes_through(part):
                    through.set()

        async def send_on() -> None:
            while True:
                sent.add(asyncio.create_task(send()))
                await asyncio.sleep(PROBE_EVERY_S)

        sending = asyncio.create_task(send_on())
        try:
            await asyncio.wait_for(through.wait(), GIVE_UP_S)
        finally:
            sending.cancel()
            self._traffic.adopt(sent)

    async def _goes_through(self, part: str) -> bool:
        """One job, and whether it has succeeded by way of this part."""
        client, kind = self._client, part.partition("-")[0]
        match kind:
            case "api":
                return succeeded(await client.chat("small", key=False, url=self._this.urls[part], **SHORT))
            case "rq":
                return await self._traffic.called_back(**{"class": "P0"})
            case "celery":
                job, job_id = await client.submit("small", **SHORT, **{"class": "P2"})
                return bool(job_id) and bool(await client.follow(job)) and succeeded(job)
            case "redis":
                return succeeded(await client.chat("small", key=False, **SHORT))
            case _:
                return await self._served_by(part.partition("-")[2])

    async def _served_by(self, name: str) -> bool:
        """By the worker as it runs now. Its pid is in its id."""
        job, job_id = await self._client.submit(POOLS[name], **SHORT, **{"class": "P0"})
        document = await self._client.follow(job) if job_id else {}
        worker = (document.get("worker") or "--").split("-")[-2]
        return document.get("status") == "succeeded" and worker == str(self._this.pid(f"worker-{name}"))
