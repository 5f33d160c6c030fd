"""OpenAI's inference endpoints. A connection waits: it gets the answer whole or in events, or takes its job with it.

These are plain ASGI endpoints; they carry nearly all traffic, and FastAPI's own handling would double their cost.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from api import body, errors, sse
from api.admission import ShardFull, enqueue, metered
from api.errors import ClientGone
from api.idempotency import key_of, keyed_job
from api.job_headers import job_headers, name_job
from api.metering import Meter, noted
from api.metrics.requests import note_place
from api.rendering import Headers, send_json
from api.services import Services
from api.submit import Wishes, attached_job, divert, elsewhere, understand
from broker import request_checks
from broker.errors import BrokerError, QueueFull
from broker.following import follow
from broker.job import Submission, pool_of
from broker.rescue import POOL_OUT
from broker.stream import Mailbox, Message, Position

GRACE_S = (
    5.0  # beyond the deadline, for the reaper to end the job; then the answer is 504 whatever Redis does
)


class Inference:
    """One endpoint."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        wishes, key = Wishes.read(scope), key_of(scope["headers"])
        raw = await body.read(receive)
        asked = await understand(services, self._endpoint, raw=raw, wishes=wishes)
        asked = await divert(services, asked, wishes=wishes)
        note_place(scope, asked.pool, service_class=asked.service_class)
        job = await (keyed_job(services, asked, key=key) if key else attached_job(services, asked))
        meter = await metered(services, job, tenant=asked.tenant)
        exchange = Exchange(services, noted(job, asked.tenant), receive=receive, send=send, keyed=bool(key))
        exchange.meter = meter
        try:
            while not exchange.ended:
                with exchange.moving(lambda: elsewhere(services, asked, job_id=job.job_id)):
                    await exchange.run()
            if exchange.escalated and asked.choice is not None:
                await services.chooser.keep(asked.choice, asked.choice.heir)
        except ClientGone:
            return
        except BrokerError as error:
            refusal = errors.translate(error)
            more = meter.headers if meter else ()
            raise name_job(refusal, exchange.headers, more=more, refused=exchange.refused) from None
        finally:
            if meter and exchange.ended and not meter.settled:
                services.spawn(meter.settle())


class Exchange:
    """One job and the connection that waits for it. However it ends early, the job is cancelled.

    `keyed`: the job has an idempotency key. The connection may be the second one, and its early end is not the job's.
    """

    __slots__ = ("box", "ended", "job", "keyed", "meter", "receive", "refused", "send", "services")

    def __init__(
        self, services: Services, job: Submission, *, receive: Receive, send: Send, keyed: bool
    ) -> None:
        self.services = services
        self.job = job
        self.receive = receive
        self.send = send
        self.keyed = keyed
        self.meter: Meter | None = None
        self.ended = False
        self.refused = False  # it was never queued
        self.box: Mailbox | None = None  # in which the job is read

    @property
    def escalated(self) -> bool:
        """The answer is a larger model's."""
        return self.box is not None and self.box.why not in ("", POOL_OUT)

    @property
    def headers(self) -> Headers:
        return job_headers(self.job, self.box)

    @contextlib.contextmanager
    def moving(self, elsewhere: Callable[[], str]) -> Iterator[None]:
        """Goes to another shard of the pool when that one has no room. A key stands for one id, which stays where it is."""
        try:
            yield
        except ShardFull:
            if self.keyed:
                raise
            self._move(elsewhere())

    def _move(self, job_id: str) -> None:
        self.job = replace(self.job, job_id=job_id, reply_to=self.services.hub.address(job_id))
        self.ended = self.refused = False
        if self.meter:
            self.meter.asked = replace(self.meter.asked, job_id=job_id)

    async def run(self) -> None:
        """Raises BrokerError as long as nothing was sent."""
        if self.keyed:
            async with self.services.hub.watch(self.job.job_id) as box:
                await self._follow(box)
        else:
            with self.services.hub.mailbox(self.job.job_id) as box:
                await self._follow(box)

    async def _follow(self, box: Mailbox) -> None:
        job, self.box = self.job, box
        late = errors.deadline_passed(job.deadline_s)
        later = asyncio.get_running_loop().call_later
        with sse.attended(self.receive, box):
            timers = [later(job.deadline_s + GRACE_S, box.leave, late)]
            try:
                await self._enqueue()
                timers.append(later(job.deadline_s, lambda: self.services.expire(box.job_id)))
                await (self._stream(box) if job.stream else self._whole(box))
            finally:
                for timer in timers:
                    timer.cancel()
                if not (self.ended or self.keyed):
                    self.services.abandon(box.job_id)

    async def _enqueue(self) -> None:
        """A job that is refused does not have to be cancelled."""
        try:
            await enqueue(self.services, self.job)
        except (errors.ApiError, QueueFull):
            self.ended = self.refused = True
            raise

    async def _whole(self, box: Mailbox) -> None:
        last = None
        async for message in follow(self.services.pipe, box, after=Position()):
            last = message
        answer = self._answered(last)
        await self._settle()
        await send_json(self.send, answer.data, headers=[*self._headers(), _queue_header(answer)])

    async def _settle(self) -> None:
        """Before the last byte: who has it may ask again at once."""
        if self.meter:
            await self.meter.settle()

    def _headers(self) -> Headers:
        return [*self.headers, *(self.meter.headers if self.meter else [])]

    async def _stream(self, box: Mailbox) -> None:
        out = sse.EventStream(self.send, self._headers(), ping_s=self.services.settings.ping_s)
        try:
            await self._relay(box, out)
        except ClientGone:
            raise
        except BrokerError as error:
            if not out.started:
                raise
            await out.finish(errors.event(error) + sse.DONE)
        else:
            await self._settle()
            await out.finish(sse.DONE)
        finally:
            out.stop()

    async def _relay(self, box: Mailbox, out: sse.EventStream) -> None:
        last, token = None, 0
        async for message in follow(self.services.pipe, box, after=Position()):
            if not out.started and message.kind != "retry":
                out.headers[:] = [*self._headers(), _queue_header(message)]
            if message.kind == "chunk":
                if message.at.token > token > 0:
                    await out.write(sse.named_event("reset", b'{"attempt":%d}' % message.at.token))
                token = message.at.token
                await out.write(sse.data_events(message.data))
            elif out.started and box.why == POOL_OUT and message.kind == "retry":  # too late for a header
                await out.write(b": degraded %s\n\n" % pool_of(box.passed[-1][0]).encode())
            last = message
        self._answered(last)

    def _answered(self, last: Message | None) -> Message:
        """Takes note that the job has ended. Raises ApiError if it did so without an answer."""
        assert last is not None, "follow ends with a message of kind done"
        self.ended = True
        error = errors.ending(last, job_id=self.job.job_id, deadline_s=self.job.deadline_s)
        if error is not None:
            raise error
        return last


def _queue_header(message: Message) -> tuple[bytes, bytes]:
    return (b"x-headway-queue-ms", b"%d" % round(message.queue_s * 1000))


def routes() -> list[BaseRoute]:
    return [Route(path, Inference(path), methods=["POST"]) for path in request_checks.SUBJECTS]
