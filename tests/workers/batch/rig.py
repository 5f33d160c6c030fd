"""Batches on a real Redis and real files, with an engine worker that answers as it is told.

`Bench` does units in the test's own event loop, message by message; `CeleryProcess` is the real program.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from broker.batch_record import BatchSpec, BatchView
from broker.batch_scripts import PLAN
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import StaleToken
from broker.files import NewFile
from broker.job import Lease, ServiceClass
from broker.policy import Asking, Limits
from broker.scripts import Ending
from broker.settings import Settings
from tests.conditions import wait_until
from workers.batch.means import Means, open_means
from workers.batch.units import Progress, Units

ENDPOINT = "/v1/chat/completions"
CONFIG = Config(models=(ModelConfig(pool="small", aliases=("gpt-small",)), ModelConfig(pool="large")))


def request_line(custom_id: str | None, text: str = "hi", **changes: Any) -> bytes:
    """One line of an input file."""
    body = {"model": "small", "messages": [{"role": "user", "content": text}]}
    line: dict[str, Any] = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}
    return orjson.dumps(line | changes) + b"\n"


def request_lines(count: int) -> bytes:
    return b"".join(request_line(f"r{n}", f"text {n}") for n in range(count))


def echo(lease: Lease) -> Ending:
    """An answer that holds what was asked."""
    asked = orjson.loads(lease.body)["messages"][0]["content"]
    return Ending(True, orjson.dumps({"object": "chat.completion", "echo": asked}))


@dataclass
class Engine:
    """Claims and answers in the background. `asked` counts by text; `hold` keeps it from claiming."""

    url: str
    answer: Callable[[Lease], Ending] = echo
    asked: Counter[str] = field(default_factory=Counter)
    classes: set[ServiceClass] = field(default_factory=set)
    most_leased: int = 0
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    slots: int = 64

    async def run(self) -> None:
        pipe = Pipe(self.url)
        consumer = Consumer(
            pipe, self.url, pool="small", asking=Asking("scripted"), limits=Limits(lease_s=60.0)
        )
        try:
            while True:
                await self.hold.wait()
                claimed = await consumer.claim(self.slots)
                self.most_leased = max(self.most_leased, len(claimed.leases))
                await asyncio.gather(*(self._finish(consumer, lease) for lease in claimed.leases))
                if not claimed.leases:
                    await consumer.wait(0.5)
        finally:
            await consumer.close()
            await pipe.close()

    async def _finish(self, consumer: Consumer, lease: Lease) -> None:
        self.classes.add(lease.service_class)
        self.asked[orjson.loads(lease.body)["messages"][0]["content"]] += 1
        with contextlib.suppress(StaleToken):
            await consumer.finish(lease, self.answer(lease))


@contextlib.asynccontextmanager
async def running(engine: Engine, *, held: bool = False) -> AsyncIterator[Engine]:
    if not held:
        engine.hold.set()
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass
class Outcome:
    """An ended batch and its files, as JSON documents."""

    batch: BatchView
    output: list[dict[str, Any]]
    errors: list[dict[str, Any]]

    @property
    def codes(self) -> dict[str | None, str]:
        """By custom_id, of the error file."""
        return {line["custom_id"]: line["error"]["code"] for line in self.errors if line["error"]}

    @property
    def answered(self) -> list[str]:
        return [line["custom_id"] for line in self.output]


@dataclass
class Bench:
    """`lose`: units whose messages do not arrive."""

    means: Means
    units: Units = field(init=False)
    lose: set[str] = field(default_factory=set)
    sent: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.units = Units(self.means, self.send)

    async def send(self, batch_id: str, unit: str) -> None:
        self.sent.append(unit)
        if unit not in self.lose:
            task = asyncio.create_task(self._do(batch_id, unit))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _do(self, batch_id: str, unit: str) -> None:
        self.said.append(await self.units.do(batch_id, unit, progress=Progress()))

    async def upload(self, content: bytes, *, purpose: str = "batch") -> str:
        return await upload(self.means, content, purpose=purpose)

    async def submit(self, content: bytes, **spec: Any) -> BatchView:
        """The batch, its plan sent."""
        wanted = {"endpoint": ENDPOINT} | spec
        batch = await self.means.batches.create(BatchSpec(await self.upload(content), **wanted))
        await self.send(batch.batch_id, PLAN)
        return batch

    async def get(self, batch: BatchView) -> BatchView:
        return await self.means.batches.get(batch.batch_id)

    async def ended(self, batch: BatchView) -> Outcome:
        return await ended(self.means, batch.batch_id)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def upload(means: Means, content: bytes, *, purpose: str = "batch") -> str:
    new = NewFile("input.jsonl", purpose)
    async with means.files.create(new) as writer:
        await writer.write(content)
    return new.file_id


async def ended(means: Means, batch_id: str, *, timeout_s: float = 30.0) -> Outcome:
    async def look() -> BatchView | None:
        view = await means.batches.get(batch_id)
        return view if view.status.terminal else None

    batch: BatchView = await wait_until(look, timeout_s=timeout_s, what=f"{batch_id} ends")
    output = await documents(means, batch.output_file_id)
    return Outcome(batch, output, await documents(means, batch.error_file_id))


async def documents(means: Means, file_id: str) -> list[dict[str, Any]]:
    if not file_id:
        return []
    content = b"".join([chunk async for chunk in means.files.read(file_id)])
    return [orjson.loads(line) for line in content.splitlines()]


@contextlib.asynccontextmanager
async def bench(settings: Settings, config: Config = CONFIG) -> AsyncIterator[Bench]:
    means = await open_means(settings, config)
    made = Bench(means)
    try:
        yield made
    finally:
        await made.close()
        await means.hub.close()
        await means.pipe.close()


@dataclass
class CeleryProcess:
    """The real Celery worker. `log` holds what it said."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, settings: Settings, log: Path, **more: str) -> "CeleryProcess":
        argv = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "workers.batch.app",
            "worker",
            "--pool",
            "threads",
            "-n",
            "batch@test",
        ]
        options = ["--task-events", "--without-gossip", "--without-mingle", "--loglevel", "info"]
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*argv, *options], env=environment(settings, **more), stdout=out, stderr=out
            )
        return cls(process, log)

    async def ready(self) -> "CeleryProcess":
        await wait_until(lambda: " ready." in self.log.read_text(), timeout_s=20, what="Celery is ready")
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    async def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return int(await asyncio.to_thread(self.process.wait, 15))


def environment(settings: Settings, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    own = {
        "HEADWAY_HOME": str(settings.home),
        "HEADWAY_REDIS_URL": settings.redis_url,
        "HEADWAY_LEASE_S": str(settings.lease_s),
        "HEADWAY_SLICE_LINES": str(settings.slice_lines),
        "HEADWAY_BATCH_WINDOW": str(settings.batch_window),
        "HEADWAY_CELERY_CONCURRENCY": str(settings.celery_concurrency),
    }
    return inherited | own | more


def each_once(answered: Iterable[str], count: int) -> bool:
    """Whether the custom_ids of `request_lines` are all there, once, in order."""
    return list(answered) == [f"r{n}" for n in range(count)]
