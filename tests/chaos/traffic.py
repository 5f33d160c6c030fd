"""What callers of many kinds want at once from one Headway, at a steady rate, drawn from a seed."""

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import FormData, web

from tests.chaos.client import PATIENCE_S, Answer, Client, Document, sight_of
from tests.chaos.judge import Job, Sight

POOLS = ("small", "small", "large")
CLASSES = ("P0", "P0", "P1", "P2", "P2", "P3")
MOST_AT_ONCE = 250
ENDED = 409  # it has, just now
BATCH_ENDS = ("completed", "failed", "expired", "cancelled")
LONG: dict[str, Any] = {
    "max_tokens": 300,
    "ignore_eos": True,
}  # a stream in whose middle something can happen
SHORT: dict[str, Any] = {"max_tokens": 24}


@dataclass(slots=True)
class Receiver:
    """Where callbacks go. `wanted`: jobs by their mark, which are to be told of at least once."""

    url: str = ""
    wanted: dict[str, Job] = field(default_factory=dict)
    came: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Receiver"]:
        app = web.Application()
        app.router.add_post("/{mark}", self._take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        mark, told = request.match_info["mark"], orjson.loads(await request.read())["data"]
        self.came[mark].set()
        if job := self.wanted.get(mark):
            job.ids.add(told["id"])
            job.sights.insert(0, sight_of(told["status"], told["result"]))
        return web.Response()

    def missing(self) -> list[Job]:
        return [job for mark, job in self.wanted.items() if not self.came[mark].is_set()]


class Traffic:
    """`rate`: single requests a second; lines of batches come on top."""

    def __init__(self, client: Client, receiver: Receiver, *, rate: float, batch_lines: int) -> None:
        self._client = client
        self._receiver = receiver
        self._rng = client.rng
        self._rate = rate
        self._lines = batch_lines
        self._marks = itertools.count()
        self._errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._kinds: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (25, self._chat),
            (10, self._keyed_chat),
            (20, self._stream),
            (25, self._polled),
            (10, self._watched),
            (7, self._cancelled),
            (3, self._told),
        ]

    async def run(self, *, every_s: float) -> None:
        """Until cancelled. A batch comes every so many seconds."""
        loop = asyncio.get_running_loop()
        next_batch = loop.time()
        while True:
            await asyncio.sleep(self._rng.expovariate(self._rate))
            if loop.time() >= next_batch:
                next_batch = loop.time() + every_s
                self._begin(self._batch)
            if len(self._tasks) < MOST_AT_ONCE:
                weights = [weight for weight, _ in self._kinds]
                self._begin(self._rng.choices(self._kinds, weights)[0][1])

    def adopt(self, tasks: Iterable["asyncio.Task[None]"]) -> None:
        """Somebody else's, to be waited for with the rest."""
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)

    async def finish(self) -> None:
        """All that has been begun. Raises what a caller has stumbled over."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._errors:
            raise BaseExceptionGroup("callers that failed", self._errors[:10])

    def _begin(self, kind: Callable[[], Awaitable[object]]) -> None:
        async def one() -> None:
            await kind()

        self.adopt([asyncio.create_task(one())])

    @property
    def _pool(self) -> str:
        return self._rng.choice(POOLS)

    async def _chat(self) -> None:
        await self._client.chat(self._pool, key=False, **SHORT)

    async def _keyed_chat(self) -> None:
        await self._client.chat(self._pool, key=True, **SHORT)

    async def _stream(self) -> None:
        size = LONG if self._rng.random() < 0.15 else SHORT
        await self._client.stream(self._pool, reset=self._rng.random() < 0.5, **size)

    async def _submitted(self, **fields: Any) -> Job | None:
        service_class = self._rng.choice(CLASSES)
        job, job_id = await self._client.submit(self._pool, **({"class": service_class} | SHORT | fields))
        return job if job_id else None

    async def _polled(self) -> None:
        """Looked at again later: what has ended stays as it is."""
        if job := await self._submitted():
            await self._client.follow(job)
            await asyncio.sleep(self._rng.uniform(1, 12))
            with contextlib.suppress(TimeoutError):
                await self._client.look(job)

    async def _watched(self) -> None:
        """By two readers."""
        if job := await self._submitted(**(LONG if self._rng.random() < 0.3 else SHORT)):
            await asyncio.gather(self._client.watch(job), self._client.watch(job))
            await self._client.follow(job)

    async def _cancelled(self) -> None:
        if job := await self._submitted(**LONG):
            await asyncio.sleep(self._rng.uniform(0, 0.5))
            await self._client.cancel(job)
            await self._client.follow(job)
            await asyncio.sleep(self._rng.uniform(0, 5))
            with contextlib.suppress(TimeoutError):
                await self._client.look(job)

    async def _told(self) -> None:
        await self.called_back()

    async def called_back(self, **fields: Any) -> bool:
        """A job whose end is called back, and whether it was."""
        mark = f"c{next(self._marks)}"
        job = await self._submitted(callback_url=f"{self._receiver.url}/{mark}", **fields)
        if job is None:
            return False
        self._receiver.wanted[mark] = job
        await self._client.follow(job)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._receiver.came[mark].wait(), PATIENCE_S)
        return self._receiver.came[mark].is_set()

    async def _batch(self) -> None:
        """A file of lines; some batches are cancelled half-way."""
        jobs, lines = dict[str, Job](), list[bytes]()
        for _ in range(self._lines):
            job, body = self._client.new_job(self._pool, **SHORT)
            jobs[job.tag] = job
            line = {"custom_id": job.tag, "method": "POST", "url": "/v1/chat/completions", "body": body}
            lines.append(orjson.dumps(line))
        carrier = Job(f"batch of {self._lines} from {next(iter(jobs))}", "")
        with contextlib.suppress(TimeoutError):
            batch = await self._submit_batch(carrier, b"\n".join(lines))
            for job in jobs.values():
                job.accepted = True
            ended = await self._follow_batch(carrier, batch)
            for name in ("output_file_id", "error_file_id"):
                if ended.get(name):
                    path = f"/v1/files/{ended[name]}/content"
                    answered(jobs, await self._client.insist(carrier, "GET", path))
            if ended["status"] == "cancelled":
                for job in jobs.values():
                    job.sights = job.sights or [Sight("cancelled")]

    async def _submit_batch(self, carrier: Job, data: bytes) -> Document:
        """Raises TimeoutError."""
        asked = {"endpoint": "/v1/chat/completions", "completion_window": "1h"}
        while True:
            form = FormData({"purpose": "batch"})
            form.add_field("file", data, filename="in.jsonl")
            answer = await self._client.ask(carrier, "POST", "/v1/files", data=form)
            if answer.status == 200:
                break
            await asyncio.sleep(0.5)
        asked["input_file_id"] = answer.document["id"]
        headers = {"Idempotency-Key": carrier.tag}
        made = await self._client.insist(carrier, "POST", "/v1/batches", json=asked, headers=headers)
        return made.document

    async def _follow_batch(self, carrier: Job, batch: Document) -> Document:
        """Raises TimeoutError."""
        path, stop = f"/v1/batches/{batch['id']}", self._rng.random() < 0.1
        async with asyncio.timeout(300):
            while batch["status"] not in BATCH_ENDS:
                await asyncio.sleep(1)
                if stop and batch["request_counts"]["completed"]:
                    stop = False
                    await self._client.insist(carrier, "POST", f"{path}/cancel", expected=ENDED)
                batch = (await self._client.insist(carrier, "GET", path)).document
        return batch


def answered(jobs: dict[str, Job], output: Answer) -> None:
    """Lines of a batch's output or errors. A line that comes twice is two jobs under one name."""
    for number, line in enumerate(map(orjson.loads, output.data.splitlines())):
        job = jobs[line["custom_id"]]
        job.ids.add(f"{line['id']} in line {number}")
        response = line.get("response") or {}
        good = response.get("status_code") == 200
        job.sights.append(sight_of("succeeded", response["body"]) if good else Sight("failed"))
