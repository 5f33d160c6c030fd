"""A good client of Headway, which writes down what it is told: retries with a key, resumes streams, polls until the end.

Everything that it hears goes into `Job` records for the judge. It never decides whether Headway did well.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from tests.chaos.judge import ENDS, FOR_NOW, Job, Piece, Refusal, Sight
from workers.engines.sim.asks import Model, read
from workers.engines.sim.tokens import word

PATIENCE_S = 120.0  # an accepted job that has not ended after this is lost
CUT_SHARE = 0.3  # of readers that hang up in the middle and come again
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: there was none."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytes = b""

    @property
    def document(self) -> Document:
        found: Document = orjson.loads(self.data)
        return found


class Client:
    """`urls`: of the API's processes; each request goes to one by chance. `model`: what the engines serve."""

    def __init__(self, http: aiohttp.ClientSession, urls: Sequence[str], *, model: Model, seed: int) -> None:
        self.jobs: list[Job] = []
        self.refusals: list[Refusal] = []
        self.broken = 0  # requests without an answer
        self.degraded = 0  # answers by another pool
        self.rng = random.Random(seed)
        self._http = http
        self._urls = urls
        self._model = model
        self._numbers = itertools.count(1)

    def new_job(self, pool: str, **fields: Any) -> tuple[Job, Document]:
        """Its record and its request. The mark is in the text, so no two answers are alike."""
        tag = f"j{next(self._numbers)}"
        content = f"{tag} " + "please " * self.rng.randint(1, 12)
        body = {"model": pool, "messages": [{"role": "user", "content": content}], "user": tag} | fields
        answer = read(body | {"model": self._model.name}, self._model, chat=True).answers[0][0]
        job = Job(tag, "".join(word(answer.seed, place) for place in range(answer.tokens)))
        self.jobs.append(job)
        return job, body

    async def ask(self, job: Job, method: str, path: str, **more: Any) -> Answer:
        """One request. A refusal is written down, unless its status is `expected`."""
        url = more.pop("url", None) or self.rng.choice(self._urls)
        expected = more.pop("expected", 0)
        try:
            async with self._http.request(method, url + path, **more) as response:
                answer = Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.broken += 1
            return Answer(0)
        self.degraded += "X-Headway-Degraded" in answer.headers
        if answer.status != expected:
            self._note_refusal(job, f"{method} {path}", answer)
        return answer

    def _note_refusal(self, job: Job, about: str, answer: Answer) -> None:
        if answer.status >= 400:
            self.refusals.append(
                Refusal(f"{about} of {job.tag}", answer.status, "Retry-After" in answer.headers)
            )

    async def insist(self, job: Job, method: str, path: str, **more: Any) -> Answer:
        """Until it is answered by more than "later". Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self.ask(job, method, path, **more)
                if answer.status and answer.status not in FOR_NOW:
                    return answer
                later_s = float(answer.headers.get("Retry-After", 0.2))
                await asyncio.sleep(min(later_s, 5.0) * self.rng.uniform(0.5, 1.0))

    async def chat(self, pool: str, *, key: bool, url: str | None = None, **fields: Any) -> Job:
        """A request whose answer is waited for. With a key it is asked again until it is there, and sometimes once more."""
        job, body = self.new_job(pool, **fields)
        path = "/v1/chat/completions"
        if not key:
            self._sight_answer(job, await self.ask(job, "POST", path, json=body, url=url))
            return job
        headers = {"Idempotency-Key": job.tag}
        for _ in range(self.rng.choice((1, 1, 2))):
            with contextlib.suppress(TimeoutError):
                self._sight_answer(job, await self.insist(job, "POST", path, json=body, headers=headers))
        return job

    def _sight_answer(self, job: Job, answer: Answer) -> None:
        if name := answer.headers.get("X-Headway-Job"):
            job.ids.add(name)
        if answer.status == 200:
            job.accepted = True
            job.sights.append(sight_of("succeeded", answer.document))
        elif status := {410: "cancelled", 502: "failed", 504: "expired"}.get(answer.status):
            job.sights.append(Sight(status))

    async def stream(self, pool: str, *, reset: bool, **fields: Any) -> Job:
        """A stream with a connection. One that breaks off is looked for by its id, until it has ended."""
        job, body = self.new_job(pool, stream=True, **fields)
        pieces, ended = list[Piece](), False
        headers = {"X-Headway-Retry": "reset"} if reset else {}
        url = self.rng.choice(self._urls) + "/v1/chat/completions"
        try:
            async with self._http.post(url, json=body, headers=headers) as response:
                if response.status != 200:
                    answer = Answer(response.status, response.headers)
                    self._note_refusal(job, "POST stream", answer)
                    self._sight_answer(job, answer)
                    return job
                job.accepted = True
                job.ids.add(response.headers["X-Headway-Job"])
                job.streams.append(pieces)
                async for event in events(response):
                    ended = self._attached_event(job, event, pieces=pieces) or ended
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.broken += 1
        if job.accepted and not ended:
            await self.follow(job)
        return job

    @staticmethod
    def _attached_event(job: Job, event: Document, *, pieces: list[Piece]) -> bool:
        """Whether the job has ended with it."""
        if event["event"] == "reset":
            pieces.append(Piece("reset"))
            return False
        if event["data"] == "[DONE]":
            if not pieces or pieces[-1].kind == "error":
                return False
            text = "".join(piece.text for piece in after_reset(pieces))
            job.sights.append(Sight("succeeded", pieces[-1].answer, text))
            pieces.append(Piece("end"))
            return True
        said = orjson.loads(event["data"])
        if "error" in said:  # what became of the job is asked for
            pieces.append(Piece("error"))
            return False
        pieces.append(Piece("chunk", said["id"], text_of(said)))
        return False

    async def submit(self, pool: str, **fields: Any) -> tuple[Job, str]:
        """A job to be polled, under a key, and its id; "" if it was never accepted."""
        job, body = self.new_job(pool, deadline_s=PATIENCE_S * 2, **fields)
        headers = {"Idempotency-Key": job.tag}
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            with contextlib.suppress(TimeoutError):
                answer = await self.insist(job, "POST", "/v1/jobs", json=body, headers=headers)
                if answer.status == 202:
                    job.accepted = True
                    job.ids.add(answer.document["id"])
                    job.sights.append(sight_of(answer.document["status"], answer.document.get("result")))
        return job, next(iter(job.ids), "")

    async def look(self, job: Job, *, wait_s: float = 0.0) -> Document:
        """At the job's document; empty if Headway does not know it. Raises TimeoutError."""
        answer = await self.insist(job, "GET", f"/v1/jobs/{min(job.ids)}?wait={wait_s:g}")
        if answer.status != 200:
            job.sights.append(Sight(""))
            return {}
        job.sights.append(sight_of(answer.document["status"], answer.document.get("result")))
        job.attempts = answer.document["attempts"]["count"]
        return answer.document

    async def follow(self, job: Job) -> Document:
        """Until the job has ended; its last document."""
        document: Document = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not (job.ended or (job.sights and not job.sights[-1].status)):
                    document = await self.look(job, wait_s=10)
        return document

    async def watch(self, job: Job) -> None:
        """Reads the job's events over as many connections as it takes."""
        pieces = list[Piece]()
        job.streams.append(pieces)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not (pieces and pieces[-1].kind in ("end", "ended")):
                    await self._read_events(job, pieces)

    async def _read_events(self, job: Job, pieces: list[Piece]) -> None:
        """One connection, after the last id that came."""
        url, last = f"{self.rng.choice(self._urls)}/v1/jobs/{min(job.ids)}/events", last_id(pieces)
        try:
            async with self._http.get(url, headers={"Last-Event-ID": last} if last else {}) as response:
                if response.status == 200:
                    return await self._hear_events(job, response, pieces=pieces)
                self._note_refusal(job, "GET events", Answer(response.status, response.headers))
                await asyncio.sleep(float(response.headers.get("Retry-After", 1)))
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.broken += 1
            await asyncio.sleep(0.2)

    async def _hear_events(self, job: Job, response: aiohttp.ClientResponse, *, pieces: list[Piece]) -> None:
        """To the end of the connection, which may be cut by us."""
        leave_after = self.rng.randint(1, 12) if self.rng.random() < CUT_SHARE else 10**9
        async for number, event in aenumerate(events(response)):
            self._watched_event(job, event, pieces=pieces)
            if number >= leave_after:
                break

    @staticmethod
    def _watched_event(job: Job, event: Document, *, pieces: list[Piece]) -> None:
        kind, token, seq = event["event"], 0, 0
        if event["id"]:
            token, seq = map(int, event["id"].split("-"))
        if kind == "chunk":
            said = orjson.loads(event["data"])
            pieces.append(Piece("chunk", said["id"], text_of(said), token, seq))
        elif kind in ("reset", "gap"):
            pieces.append(Piece(kind, token=token))
        elif kind == "done":
            said = orjson.loads(event["data"])
            job.sights.append(sight_of(said["status"], said["result"]))
            pieces.append(Piece("end" if said["status"] == "succeeded" else "ended"))

    async def cancel(self, job: Job) -> None:
        with contextlib.suppress(TimeoutError):
            answer = await self.insist(job, "DELETE", f"/v1/jobs/{min(job.ids)}")
            if answer.status == 200:
                job.sights.append(sight_of(answer.document["status"], answer.document.get("result")))


def sight_of(status: str, answer: Any) -> Sight:
    """`answer`: the engine's document, if there is one."""
    if status not in ENDS or not answer:
        return Sight(status)
    return Sight(status, answer["id"], answer["choices"][0]["message"]["content"])


def text_of(chunk: Document) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def last_id(pieces: list[Piece]) -> str:
    """Of the last event that had one; "" before it."""
    return next((f"{piece.token}-{piece.seq}" for piece in reversed(pieces) if piece.token), "")


def after_reset(pieces: list[Piece]) -> list[Piece]:
    starts = [place for place, piece in enumerate(pieces) if piece.kind == "reset"]
    return pieces[starts[-1] + 1 :] if starts else pieces


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Document]:
    """Whole ones only."""
    event: Document = {"event": "message", "id": "", "data": ""}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        name, _, value = line.partition(": ")
        if line and name in event:
            event[name] = value
        elif not line:
            if event["data"]:
                yield event
            event = {"event": "message", "id": "", "data": ""}


async def aenumerate(items: AsyncIterator[Document]) -> AsyncIterator[tuple[int, Document]]:
    number = 0
    async for item in items:
        number += 1
        yield number, item
