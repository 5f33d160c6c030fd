"""The API as it runs: uvicorn on a free port, a real Redis, and a worker that writes what a test says through the queue."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import httpx
import orjson
import uvicorn
from openai import AsyncOpenAI

from api.app import create_app
from api.connection import WatchfulProtocol
from api.server import Server
from broker import accounts, fleet, policy, scripts
from broker.accounts import Attempt, Used
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.fleet import WorkerRecord
from broker.job import Lease, queue_of
from broker.policy import Asking
from broker.producer import Producer
from broker.settings import Settings
from tests.conditions import wait_until

CONFIG = Config(models=(ModelConfig(pool="small", aliases=("gpt-small",)), ModelConfig(pool="large")))
LIMITS = policy.Limits()
DRAIN_S = 1.0


@dataclass(slots=True)
class ScriptedWorker:
    """Claims what a test lets it claim and writes what the test says."""

    pipe: Pipe
    consumer: Consumer
    pool: str
    leases: list[Lease] = field(default_factory=list)
    flushes: int = 0

    @classmethod
    async def join(cls, url: str, pool: str, *, state: str = "ready") -> "ScriptedWorker":
        pipe = Pipe(url)
        worker = cls(
            pipe, Consumer(pipe, url, pool=pool, asking=Asking(f"scripted-{pool}"), limits=LIMITS), pool
        )
        await worker.announce(state)
        return worker

    async def announce(self, state: str) -> None:
        """One heartbeat, good for 90 s."""
        worker_id = f"scripted-{self.pool}"
        record = WorkerRecord(
            worker_id=worker_id,
            pool=self.pool,
            engine="scripted",
            model="scripted-1",
            slots=4,
            busy_slots=1,
            state=state,
            pid=1,
            host="test",
            embedded=True,
        )
        await fleet.announce_pool(self.pipe, self.pool)
        await self.pipe.run(scripts.renew(self.pool, scripts.Beat(worker_id, record.dump(), (), 60.0)))

    async def claim(self) -> Lease:
        """The next job, once there is one."""

        async def one() -> Lease | None:
            leases = (await self.consumer.claim(1)).leases
            return leases[0] if leases else None

        lease = await wait_until(one, what="a job to claim")
        assert isinstance(lease, Lease)
        self.leases.append(lease)
        return lease

    async def append(self, lease: Lease, *payloads: bytes, seq: int) -> None:
        """`seq`: number of the last payload."""
        chunk = Chunk(lease.job_id, lease.token, seq=seq, data=b"\n".join(payloads))
        assert await self.consumer.append([chunk]) == [True]

    async def finish(self, lease: Lease, data: bytes = b"", *, succeeded: bool = True) -> None:
        ending = scripts.Ending(succeeded, data, prompt_tokens=3, output_tokens=2)
        await self.consumer.finish(lease, ending)
        await self.account(lease, Used(1, 1, prompt_tokens=3, output_tokens=2, gpu_us=500_000))

    async def account(self, lease: Lease, used: Used) -> None:
        """As workers do once a second."""
        self.flushes, sums, times = self.flushes + 1, dict[tuple[str, str], int](), {"wait": lease.waited_s}
        Attempt(lease.tenant, lease.service_class, used, times).add_to(sums)
        await accounts.note_queue(self.pipe, queue := queue_of(lease.job_id))
        await self.pipe.run(accounts.flush(queue, f"scripted-{self.pool}", number=self.flushes, sums=sums))

    async def stream(self, lease: Lease, *texts: str) -> None:
        """Chunks one by one, then the end, as the real worker does."""
        for seq, text in enumerate(texts, 1):
            await self.append(lease, chunk_payload(text), seq=seq)
        await self.finish(lease)

    async def bury(self, lease: Lease, error: bytes) -> None:
        """An engine error past the limit of retries."""
        last_try = scripts.Return("error", error=error)
        call = scripts.release(lease.job_id, lease.token, given=last_try, limits=policy.Limits(max_errors=0))
        assert await self.pipe.run(call) == 2

    async def stream_next(self, *texts: str) -> None:
        await self.stream(await self.claim(), *texts)

    async def close(self) -> None:
        await self.consumer.leave()
        await self.consumer.close()
        await self.pipe.close()


def chunk_payload(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return orjson.dumps(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    )


def whole_answer(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return orjson.dumps(
        {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )


@dataclass(slots=True)
class Served:
    """A running API."""

    url: str
    http: httpx.AsyncClient
    redis_url: str
    producer: Producer
    pipe: Pipe
    stop: Callable[[], Awaitable[None]]

    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def fresh(self) -> None:
        """Has the API look at the fleet anew, whose picture may be a second old."""
        await self.http.get("/readyz")

    async def status(self, job_id: str) -> str:
        return str((await self.producer.get(job_id)).status)


@contextlib.asynccontextmanager
async def serve(settings: Settings, *, config: Config | None = CONFIG) -> AsyncIterator[Served]:
    """The API process's parts in this event loop; stopped as SIGTERM would."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        app = create_app(settings, config)
        options = uvicorn.Config(
            app,
            lifespan="on",
            log_config=None,
            ws="none",
            http=WatchfulProtocol,
        )
        options.load()
        server = Server(options, app=app, drain_s=DRAIN_S)
        server.lifespan = options.lifespan_class(options)
        await server.startup(sockets=[sock])
        pipe = Pipe(settings.redis_url)
        stopped = asyncio.Event()

        async def stop() -> None:
            if not stopped.is_set():
                stopped.set()
                await server.shutdown(sockets=[sock])

        try:
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                yield Served(url, client, settings.redis_url, Producer(pipe), pipe, stop)
        finally:
            await stop()
            await pipe.close()


def chat(**fields: object) -> dict[str, object]:
    """A request body."""
    return {"model": "small", "messages": [{"role": "user", "content": "hi"}], **fields}
