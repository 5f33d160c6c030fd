"""What engine workers do with the queue: wait for work, claim it, write under a lease, give it back.

`work_or` blocks on the pool's marker, so that an idle worker costs no polling and one job wakes one worker.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError

from broker import scripts
from broker.connection import Pipe, connect
from broker.errors import QueueFull, StaleToken
from broker.job import Lease, ServiceClass
from broker.keys import PoolKeys

MAX_BLOCK_S = 5.0
GRACE_S = 5.0  # a server that has not answered so long after the block hangs, or the network has swallowed it


@dataclass(frozen=True, slots=True)
class Claimed:
    """`more`: ready jobs were left. `next_due_s`: until the next retry may be claimed, None if there is none."""

    leases: list[Lease]
    more: bool
    next_due_s: float | None


class Consumer:
    """One worker's view of one pool. `url` is for the blocking connection, which it does not share."""

    def __init__(self, pipe: Pipe, url: str, *, pool: str, worker_id: str, limits: scripts.Limits) -> None:
        self._pipe = pipe
        self._keys = PoolKeys(pool)
        self._pool = pool
        self._worker_id = worker_id
        self._limits = limits
        self._blocking = connect(url, timeout_s=None)

    async def claim(self, n: int) -> Claimed:
        """Leases up to `n` jobs. Raises RedisAway: what was leased unseen comes back when its lease runs out."""
        answer = await self._pipe.run(
            scripts.claim(self._pool, self._worker_id, n=n, lease_s=self._limits.lease_s)
        )
        more, due, *jobs = answer
        return Claimed([_lease(job) for job in jobs], bool(more), None if int(due) < 0 else int(due) / 1000)

    async def wait(self, at_most_s: float) -> None:
        """Returns when there may be work, or after `at_most_s` (bounded by MAX_BLOCK_S). Raises RedisError, OSError.

        A cancelled wait drops its connection, or Redis could hand a marker to nobody.
        """
        block_s = max(0.01, min(at_most_s, MAX_BLOCK_S))
        try:
            async with asyncio.timeout(block_s + GRACE_S):
                await self._blocking.bzpopmin(self._keys.named("marker"), timeout=block_s)
        except BaseException:
            with contextlib.suppress(RedisError, OSError):
                await self._blocking.connection_pool.disconnect()
            raise

    async def append(self, chunks: Sequence["Chunk"], *, maxlen: int = 10_000) -> list[bool]:
        """Writes chunks of several jobs in one round trip; False where the token is stale."""
        calls = [scripts.append(c.job_id, c.token, seq=c.seq, data=c.data, maxlen=maxlen) for c in chunks]
        return [bool(answer) for answer in await self._pipe.run_all(calls)]

    async def finish(self, lease: Lease, ending: scripts.Ending) -> None:
        """Ends the job. Safe to repeat. Raises StaleToken if the job is no longer this lease's."""
        if not await self._pipe.run(scripts.finish(lease.job_id, lease.token, ending=ending)):
            raise StaleToken(f"{lease.job_id} was taken from token {lease.token} before it finished")

    async def release(self, lease: Lease, given: scripts.Return) -> bool:
        """Gives the job back; False if that was its last try. Raises StaleToken."""
        answer = await self._pipe.run(
            scripts.release(lease.job_id, lease.token, given=given, limits=self._limits)
        )
        if not answer:
            raise StaleToken(f"{lease.job_id} was taken from token {lease.token} before it was released")
        return bool(answer == 1)

    async def reap(self) -> list[int]:
        """See `scripts.reap`; empty if another process has just done it."""
        return list(await self._pipe.run(scripts.reap(self._pool, self._limits)))

    async def wake_another(self) -> None:
        """Puts the marker back, for a worker that took it and cannot use it."""
        with contextlib.suppress(
            QueueFull
        ):  # memory is full: the others look by themselves after MAX_BLOCK_S
            await self._pipe.command("ZADD", self._keys.named("marker"), 0, "work")

    async def leave(self) -> None:
        """Removes this worker's record, so that the fleet does not wait for it to time out."""
        await asyncio.gather(
            self._pipe.command("ZREM", self._keys.named("workers"), self._worker_id),
            self._pipe.command("DEL", self._keys.worker(self._worker_id)),
        )

    async def close(self) -> None:
        await self._blocking.aclose()


@dataclass(frozen=True, slots=True)
class Chunk:
    """`data`: engine payloads joined by newlines; `seq`: number of the last of them within the token, from 1."""

    job_id: str
    token: int
    seq: int
    data: bytes


def _lease(row: list[bytes]) -> Lease:
    job_id, token, service_class, endpoint, stream, attached, attempt, cost, deadline, tenant, body = row
    return Lease(
        job_id=job_id.decode(),
        token=int(token),
        service_class=ServiceClass(int(service_class)),
        endpoint=endpoint.decode(),
        stream=stream == b"1",
        attached=attached == b"1",
        attempt=int(attempt),
        run_s=float(cost) / 1000,
        deadline=float(deadline) / 1000,
        tenant=tenant.decode(),
        body=body,
    )
