"""What engine workers do with the queue: wait for work, claim it, write under a lease, give it back.

`work_or` blocks on the pool's marker, so that an idle worker costs no polling and one job wakes one worker.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from broker import scripts
from broker.blocking import Blocking
from broker.connection import Pipe
from broker.errors import QueueFull, StaleToken
from broker.job import Lease, ServiceClass
from broker.keys import PoolKeys
from broker.policy import Asking, Limits, Room

MAX_BLOCK_S = 5.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """`more`: claim again at once. `passed`: what is left is not for this worker now. `next_due_s`: until a retry, or a
    job that was passed over, may be claimed; None if there is none."""

    leases: list[Lease]
    more: bool
    passed: bool
    next_due_s: float | None


class Consumer:
    """One worker's view of one pool. `url` is for the blocking connection, which it does not share."""

    def __init__(self, pipe: Pipe, url: str, *, pool: str, asking: Asking, limits: Limits) -> None:
        self._pipe = pipe
        self._keys = PoolKeys(pool)
        self._pool = pool
        self._asking = asking
        self._worker_id = asking.worker_id
        self._limits = limits
        self._blocking = Blocking(url)

    async def claim(self, room: Room | int) -> Claimed:
        """Leases jobs that fit into `room` (or into so many slots, nothing else being short).

        Raises RedisAway: what was leased unseen comes back when its lease runs out.
        """
        free = Room(slots=room) if isinstance(room, int) else room
        more, due, *jobs = await self._pipe.run(scripts.claim(self._pool, self._asking, room=free))
        next_due_s = None if int(due) < 0 else int(due) / 1000
        return Claimed([_lease(job) for job in jobs], int(more) == 1, int(more) == 2, next_due_s)

    async def wait(self, at_most_s: float, *, for_all: bool = True) -> None:
        """Returns when there may be work, or after `at_most_s` (bounded by MAX_BLOCK_S).

        `for_all` False: only for a job that waits for this very worker, or an urgent one.
        Raises RedisError, OSError, RedisAway.
        """
        block_s = max(0.01, min(at_most_s, MAX_BLOCK_S))
        shared = self._keys.named("marker" if for_all else "urgent")
        await self._blocking.pop(self._keys.marker(self._worker_id), shared, block_s=block_s)

    async def urgent_s(self) -> float | None:
        """For how long the first waiting P0 job has waited; None if none waits."""
        waited = await self._pipe.run(scripts.urgent(self._pool))
        return None if int(waited) < 0 else int(waited) / 1000

    async def append(self, chunks: Sequence["Chunk"], *, maxlen: int = 10_000) -> list[bool]:
        """Writes chunks of several jobs in one round trip; False where the token is stale."""
        calls = [scripts.append(c.job_id, c.token, seq=c.seq, data=c.data, maxlen=maxlen) for c in chunks]
        return [bool(answer) for answer in await self._pipe.run_all(calls)]

    async def finish(self, lease: Lease, ending: scripts.Ending) -> None:
        """Ends the job. Safe to repeat. Raises StaleToken if the job is no longer this lease's."""
        if not (await self.finish_many([(lease, ending)]))[0]:
            raise StaleToken(f"{lease.job_id} was taken from token {lease.token} before it finished")

    async def finish_many(self, ends: Sequence[tuple[Lease, scripts.Ending]]) -> list[bool]:
        """Ends several jobs in one script; False where the token is stale."""
        call = scripts.finish_many([(lease.job_id, lease.token, ending) for lease, ending in ends])
        return [bool(answer) for answer in await self._pipe.run(call)]

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
        await self._blocking.close()


@dataclass(frozen=True, slots=True)
class Chunk:
    """`data`: engine payloads joined by newlines; `seq`: number of the last of them within the token, from 1."""

    job_id: str
    token: int
    seq: int
    data: bytes


def _lease(row: list[bytes]) -> Lease:
    job_id, token, service_class, endpoint, stream, attached, attempt, *more = row
    cost, deadline, tenant, need, preempts, body = more
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
        kv_tokens=int(need),
        preempts=int(preempts),
    )
