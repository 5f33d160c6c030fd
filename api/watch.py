"""`/v1/jobs/{id}/events`: a job as it happens, resumable at every payload by Last-Event-ID.

Events: `status` (no id), `chunk` (one engine payload, id `token-seq`), `reset` (what came before was an attempt that
did not end; the answer begins anew), `gap` (chunks in between are no longer kept), `done` (the job's document).
"""

from collections.abc import Mapping
from urllib.parse import parse_qs

import orjson
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from api.describe import describe
from api.errors import ApiError, ClientGone, invalid
from api.ownership import own_job
from api.services import Services
from api.sse import EventStream, attended, named_event
from broker.errors import RedisAway, StreamLost, UnknownJob
from broker.following import follow
from broker.job import Status, queue_of
from broker.keys import PoolKeys
from broker.stream import Mailbox, Message, Position

PATH = "/v1/jobs/{job_id}/events"


class Events:
    """The endpoint, plain ASGI."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        job_id: str = scope["path_params"]["job_id"]
        after = read_position(scope)
        job = await own_job(services, scope, job_id=job_id)
        out = EventStream(send, [(b"x-headway-job", job_id.encode())], ping_s=services.settings.ping_s)
        watch = Watch(services, job_id, out=out, after=after)
        try:
            async with services.hub.watch(job_id) as box:
                with attended(receive, box):
                    await watch.tell_status(first_status(job.status, after))
                    await watch.run(box)
        except ClientGone:
            pass
        except (ApiError, RedisAway, UnknownJob):  # an ApiError says that the process stops
            # no `done`: the reader comes again and goes on after its last id
            await out.finish(b": interrupted, please reconnect\n\n")
        finally:
            out.stop()


def read_position(scope: Scope) -> Position:
    """Where to go on: the `Last-Event-ID` header, else the query's `after`, else the beginning. Raises ApiError."""
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    text = headers.get(b"last-event-id", b"").decode("latin-1")
    param = "Last-Event-ID"
    if not text:
        param = "after"
        text = parse_qs(scope["query_string"].decode("latin-1")).get("after", [""])[0]
    if not text:
        return Position()
    try:
        return Position.parse(text)
    except ValueError as error:
        raise invalid(f"{param}: {error} (<attempt>-<number>)", param=param) from None


def first_status(now: Status, after: Position) -> Status:
    """What is told first. Of a job that has ended, what a reader at its beginning would have been told first."""
    if not now.terminal:
        return now
    return Status.RUNNING if after.token else Status.QUEUED


class Watch:
    """One reader of one job."""

    def __init__(self, services: Services, job_id: str, *, out: EventStream, after: Position) -> None:
        self._services = services
        self._job_id = job_id
        self._out = out
        self._at = after
        self._status: Status | None = None

    async def run(self, box: Mailbox) -> None:
        """Until the job has ended. Raises ClientGone, RedisAway, UnknownJob."""
        while True:
            try:
                async for message in follow(self._services.pipe, box, after=self._at):
                    await self._tell(message)
                break
            except StreamLost:
                await self._skip(box.job_id)
                box.lose()
        document = await describe(self._services, await self._services.producer.get(self._job_id))
        await self._out.finish(named_event("done", orjson.dumps(document)))

    async def tell_status(self, status: Status) -> None:
        if status is not self._status:
            self._status = status
            await self._out.write(named_event("status", orjson.dumps({"id": self._job_id, "status": status})))

    async def _tell(self, message: Message) -> None:
        if message.kind == "done" and message.at.token and self._status is Status.QUEUED:
            await self.tell_status(Status.RUNNING)  # it did, between two looks
        await self.tell_status(message.status)
        if message.kind != "chunk":
            return
        events = b""
        if self._at.seq and message.at.token > self._at.token:
            events = self._reset(message.at.token)
        payloads = message.data.split(b"\n")
        first = message.at.seq - len(payloads) + 1
        for number, payload in enumerate(payloads, first):
            events += named_event("chunk", payload, event_id=f"{message.at.token}-{number}")
        self._at = message.at
        await self._out.write(events)

    def _reset(self, token: int) -> bytes:
        return named_event("reset", b'{"attempt":%d}' % token, event_id=str(Position(token, 0)))

    async def _skip(self, job_id: str) -> None:
        """Says that chunks are missing and goes to the oldest that is kept."""
        pipe, output = self._services.pipe, PoolKeys(queue_of(job_id)).output(job_id)
        kept = await pipe.command("XRANGE", output, f"({self._at}", "+", "COUNT", 1)
        if not kept:  # gone since: whatever comes next is live
            return
        entry_id, (_, data) = kept[0]
        last = Position.parse(entry_id.decode())
        resumed = Position(last.token, last.seq - data.count(b"\n") - 1)
        told = orjson.dumps({"after": str(self._at), "resumes_after": str(resumed)})
        events = named_event("gap", told)
        if self._at.seq and resumed.token > self._at.token:
            events += self._reset(resumed.token)
        self._at = resumed
        await self._out.write(events)


def routes() -> list[BaseRoute]:
    return [Route(PATH, Events(), methods=["GET"])]
