"""Building jobs, and a second way into Redis: to look past the scripts, and to let time pass without waiting."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import redis

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.fleet import known_queues
from broker.job import Forecast, ServiceClass, Submission, new_job_id
from broker.keys import PoolKeys
from broker.policy import Asking, Limits

POOL = "small"
KEYS = PoolKeys(POOL)
LIMITS = Limits(lease_s=10.0, max_errors=1, max_deaths=1)
LONG_AGO = 1  # milliseconds since the epoch
BODY = b'{"prompt":"hello"}'
ERROR = b'{"message":"the engine failed","type":"server_error","code":null,"param":null}'


def submission(**changes: Any) -> Submission:
    """A plain P0 job that would take a second."""
    plain = Submission(new_job_id(POOL), ServiceClass.P0, "/v1/completions", BODY, Forecast(3, 50, 1.0))
    return replace(plain, **changes)


@asynccontextmanager
async def another(pipe: Pipe, url: str, name: str) -> AsyncIterator[Consumer]:
    """One more worker of the pool."""
    consumer = Consumer(pipe, url, pool=POOL, asking=Asking(name), limits=LIMITS)
    yield consumer
    await consumer.close()


async def end_everything(pipe: Pipe) -> None:
    """Cancels what is queued or running in any queue."""
    for queue in await known_queues(pipe):
        for name in ("aging", "deadlines"):
            for job_id in await pipe.command("ZRANGE", PoolKeys(queue).named(name), 0, -1):
                await pipe.run(scripts.cancel(job_id.decode()))


class Backdoor:
    """Commands that no part of Headway sends. `client` answers in bytes."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def ask(self, *command: str | bytes | int | float) -> Any:
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    @contextmanager
    def hear(self, channel: str) -> Iterator[Callable[[], bytes]]:
        """Gives a function that returns the next message that is published there."""
        with self.client.pubsub() as ear:  # type: ignore[no-untyped-call]
            ear.subscribe(channel)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            yield lambda: bytes(ear.get_message(timeout=5)["data"])

    def job(self, job_id: str) -> dict[str, str]:
        """The job's hash."""
        flat: dict[bytes, bytes] = self.ask("HGETALL", KEYS.job(job_id))
        return {name.decode(): value.decode() for name, value in flat.items()}

    def status(self, job_id: str) -> str:
        return self.job(job_id)["status"]

    def members(self, suffix: str) -> list[str]:
        return [member.decode() for member in self.ask("ZRANGE", KEYS.named(suffix), 0, -1)]

    def stats(self) -> dict[str, str]:
        flat: dict[bytes, bytes] = self.ask("HGETALL", KEYS.named("stats"))
        return {name.decode(): value.decode() for name, value in flat.items()}

    def end_lease(self, job_id: str) -> None:
        """As if its worker had not been heard of for longer than the lease."""
        self.ask("ZADD", KEYS.named("leases"), "XX", LONG_AGO, job_id)

    def end_delay(self, job_id: str) -> None:
        """As if the delay of its retry, or its hold, had passed."""
        self.ask("ZADD", KEYS.named("delayed"), "XX", LONG_AGO, job_id)

    def pass_deadline(self, job_id: str) -> None:
        self.ask("HSET", KEYS.job(job_id), "deadline", LONG_AGO)
        self.ask("ZADD", KEYS.named("deadlines"), "XX", LONG_AGO, job_id)
        self.ask("ZADD", KEYS.named("aging"), "XX", LONG_AGO, job_id)

    def let_reap(self) -> None:
        """As if the last reap was long ago."""
        self.ask("DEL", KEYS.named("reaped"))

    def snapshot(self) -> dict[bytes, bytes]:
        """Everything in Redis, by key, but what goes by itself while a test runs."""
        short_lived = (KEYS.fair("").encode(), KEYS.named("reaped").encode())
        keys = sorted(key for key in self.client.scan_iter(count=1000) if not key.startswith(short_lived))
        pipeline = self.client.pipeline(transaction=True)
        for key in keys:
            pipeline.dump(key)
        return dict(zip(keys, pipeline.execute(), strict=True))

    def keys_without_ttl(self) -> set[str]:
        keys = sorted(self.client.scan_iter(count=1000))
        pipeline = self.client.pipeline(transaction=True)
        for key in keys:
            pipeline.ttl(key)
        return {key.decode() for key, ttl in zip(keys, pipeline.execute(), strict=True) if ttl == -1}

    def fill_memory(self) -> None:
        """From here on Redis refuses whatever may need more memory."""
        self.ask("CONFIG", "SET", "maxmemory", 1)

    def free_memory(self) -> None:
        self.ask("CONFIG", "SET", "maxmemory", 0)
