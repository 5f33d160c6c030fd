"""What engine workers do with the queue: wait for work, claim it, write under a lease, give it back.

`wait` blocks on the markers of its queues, so that an idle worker costs no polling and one job wakes one worker.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker import scripts
from broker.blocking import Blocking
from broker.connection import Pipe
from broker.errors import QueueFull, RedisAway, StaleToken
from broker.job import Lease, ServiceClass, queue_of
from broker.keys import PoolKeys
from broker.policy import Asking, Limits, Room
from broker.served import Served
from broker.topology import parse

MAX_BLOCK_S = 5.0
MARKER_TTL_MS = 10_000  # of a single worker's, as _spread.lua has it
HOLDS, BARRED, HOLDS_FIRM = 3, 4, 5  # as claim.lua says
LOOK_S = 1.25  # between looks at queues that cannot be waited for, in other slots of a cluster


@dataclass(frozen=True, slots=True)
class Claimed:
    """`more`: claim again at once. `passed`: what is left is not for this worker now. `next_due_s`: until a retry, or a
    job that was passed over, may be claimed; None if there is none. `barred`: this worker's breaker is open, at least in one queue."""

    leases: list[Lease]
    more: bool
    passed: bool
    next_due_s: float | None
    barred: bool = False


class Consumer:
    """One worker's view of its queues. `url` is for the blocking connection, which it does not share."""

    def __init__(self, pipe: Pipe, url: str, *, pool: str | Served, asking: Asking, limits: Limits) -> None:
        """`pool`: the queues, or the name of the only one."""
        self._pipe = pipe
        self._served = Served([pool]) if isinstance(pool, str) else pool
        self._on_one_server = parse(url).kind != "cluster"
        self._rang = ""  # the queue that ended the last wait
        self._held = ""  # the queue that room is held for
        self._firm = False  # also against P0 jobs of other queues
        self._urgent = ""  # the queue whose P0 job has waited longest, as last seen
        self._looked_at = 0.0
        self._looks = 0
        self._idle = False  # the last claim left nothing: what has come since rings
        self._asking = asking
        self._only_urgent = replace(asking, classes=asking.classes & {ServiceClass.P0})
        self._worker_id = asking.worker_id
        self._limits = limits
        self._blocking = Blocking(url)

    async def claim(self, room: Room | int) -> Claimed:
        """Leases jobs that fit into `room` (or into so many slots, nothing else being short).

        Asks its queues one after the other until one gives something; first one whose P0 job would else wait for lower
        classes. Raises RedisAway: what was leased unseen comes back when its lease runs out.
        """
        free = Room(slots=room) if isinstance(room, int) else room
        urgent = await self._urgent_elsewhere() if len(self._served.queues) > 1 else ""
        queues = tuple(dict.fromkeys((urgent or self._held, self._held)))
        if not self._held:
            queues = self._served.round(self._rang, urgent)
        self._idle, passed, barred, next_due_s = False, False, False, None
        for queue in queues:
            claimed = await self._claim(queue, free)
            self._rang = "" if self._rang == queue else self._rang
            passed, barred = passed or claimed.passed, barred or claimed.barred
            next_due_s = _sooner(next_due_s, claimed.next_due_s)
            if claimed.leases or claimed.more or queue == self._held:
                return replace(claimed, passed=passed, next_due_s=next_due_s)
            self._served.gave_nothing(queue)
        self._idle = not passed
        return Claimed([], more=False, passed=passed, next_due_s=next_due_s, barred=barred)

    async def _claim(self, queue: str, room: Room) -> Claimed:
        # a worker that holds its room for a job of one queue must not fill it from another, unless with P0 jobs
        asking = self._asking if self._held in ("", queue) else self._only_urgent
        call = scripts.claim(queue, asking, room=room, away=self._served.away(queue))
        more, due, *jobs = await self._pipe.run(call)
        if more in (HOLDS, HOLDS_FIRM):
            self._held, self._firm = queue, more == HOLDS_FIRM
        elif queue == self._held:
            self._held, self._firm = "", False
        next_due_s = None if int(due) < 0 else int(due) / 1000
        if jobs and queue != self._served.home:
            with contextlib.suppress(RedisAway):  # it has less room than it said at home
                await self._pipe.command("ZREM", PoolKeys(self._served.home).named("spare"), self._worker_id)
        return Claimed([lease_of(job) for job in jobs], more == 1, more >= 2, next_due_s, more == BARRED)

    async def _urgent_elsewhere(self) -> str:
        """The queue to ask before those whose turn it is, for a P0 job waits there; empty if there is none.

        In a cluster it looks every LOOK_S only: the queues lie on other servers, any of which may be slow.
        """
        found, self._urgent = self._urgent, ""
        if self._firm or ServiceClass.P0 not in self._asking.classes:
            return ""
        if self._held and not found:
            found = self._rang
        if found or self._rang:
            return "" if found == (self._held or self._served.home) else found
        if self._idle or (not self._on_one_server and time.monotonic() - self._looked_at < LOOK_S):
            return ""
        self._looked_at = time.monotonic()
        queues = self._served.queues
        asks = (self._pipe.command("EXISTS", PoolKeys(queue).named("ready:0")) for queue in queues)
        waiting = await asyncio.gather(*(_unless_away(ask) for ask in asks))
        urgent = [
            queue for queue, waits in zip(queues, waiting, strict=True) if waits and queue != self._held
        ]
        if not urgent or (urgent[0] == self._served.home and not self._held):
            return ""
        self._looks += 1
        return urgent[self._looks % len(urgent)]

    async def wait(self, at_most_s: float, *, for_all: bool = True) -> None:
        """Returns when there may be work, or after `at_most_s` (bounded by MAX_BLOCK_S).

        `for_all` False: only for a job that waits for this very worker, or an urgent one.
        Raises RedisError, OSError, RedisAway.
        """
        served = self._served
        if self._held and self._on_one_server:
            queues: tuple[str, ...] = (self._held,)
        else:
            queues = served.bells() if self._on_one_server else (served.home,)
        longest_s = MAX_BLOCK_S if len(queues) == len(served.queues) else LOOK_S
        bells = self._bells(queues, for_all=for_all)
        rung = await self._blocking.pop(*bells, block_s=max(0.01, min(at_most_s, longest_s)))
        self._rang = bells[rung] if rung else self._rang

    def _bells(self, queues: Sequence[str], *, for_all: bool) -> dict[str, str]:
        """What to listen to, and whose it is, in the order in which Redis looks."""
        bells = {PoolKeys(queue).marker(self._worker_id): queue for queue in queues}
        if for_all:
            bells |= {PoolKeys(queue).named("marker"): queue for queue in queues}
        elif ServiceClass.P0 in self._asking.classes:
            others = self._served.queues if self._held and self._on_one_server and not self._firm else ()
            bells |= {PoolKeys(queue).named("urgent"): queue for queue in (*queues, *others)}
        return bells

    async def urgent_s(self) -> float | None:
        """For how long the first waiting P0 job of its queues has waited, whose queue the next claim asks first; None if
        none waits that it may take."""
        self._urgent = ""
        if ServiceClass.P0 not in self._asking.classes:
            return None
        queues = self._served.queues
        asks = (self._pipe.run(scripts.urgent(queue)) for queue in queues)
        if len(queues) == 1:
            waited = [int(await next(asks))]
        else:
            answers = await asyncio.gather(*(_unless_away(ask) for ask in asks))
            waited = [-1 if answer is None else int(answer) for answer in answers]
        longest = max(waited)
        if longest < 0:
            return None
        self._urgent = queues[waited.index(longest)]
        return longest / 1000

    async def ring_on(self, *, also_full: bool) -> None:
        """For a full worker that heard of an urgent job: has the one with the most room look; where none has, `also_full`
        says whether another full one shall hear of it."""
        keys = PoolKeys(self._urgent or self._rang or self._served.home)
        roomy = await self._pipe.command("ZREVRANGE", keys.named("spare"), 0, 0)
        bell = keys.marker(roomy[0].decode()) if roomy else keys.named("urgent")
        with contextlib.suppress(QueueFull):  # memory is full: they look by themselves
            if roomy or also_full:
                await self._pipe.command("ZADD", bell, 0, "work")
            if roomy:
                await self._pipe.command("PEXPIRE", bell, MARKER_TTL_MS)

    async def append(self, chunks: Sequence["Chunk"], *, maxlen: int = 10_000) -> list[bool]:
        """Writes chunks of several jobs in one round trip; False where the token is stale."""
        calls = [scripts.append(c.job_id, c.token, seq=c.seq, data=c.data, maxlen=maxlen) for c in chunks]
        return [bool(answer) for answer in await self._pipe.run_all(calls)]

    async def finish(self, lease: Lease, ending: scripts.Ending) -> None:
        """Ends the job. Safe to repeat. Raises StaleToken if the job is no longer this lease's."""
        if not (await self.finish_many([(lease, ending)]))[0]:
            raise StaleToken(f"{lease.job_id} was taken from token {lease.token} before it finished")

    async def finish_many(self, ends: Sequence[tuple[Lease, scripts.Ending]]) -> list[bool]:
        """Ends several jobs, in one script for each queue; False where the token is stale."""
        parts: dict[str, list[int]] = {}
        for number, (lease, _) in enumerate(ends):
            parts.setdefault(queue_of(lease.job_id), []).append(number)
        reports = [(lease.job_id, lease.token, ending) for lease, ending in ends]
        calls = [
            scripts.finish_many([reports[n] for n in numbers], self._limits.breaker)
            for numbers in parts.values()
        ]
        kept = [False] * len(ends)
        for numbers, answers in zip(parts.values(), await self._pipe.run_all(calls), strict=True):
            for number, answer in zip(numbers, answers, strict=True):
                kept[number] = bool(answer)
        return kept

    async def release(self, lease: Lease, given: scripts.Return) -> bool:
        """Gives the job back; False if that was its last try. Raises StaleToken."""
        answer = await self._pipe.run(
            scripts.release(lease.job_id, lease.token, given=given, limits=self._limits)
        )
        if not answer:
            raise StaleToken(f"{lease.job_id} was taken from token {lease.token} before it was released")
        return bool(answer == 1)

    async def reap(self) -> list[int]:
        """See `scripts.reap`, of its home; empty if another process has just done it."""
        return list(await self._pipe.run(scripts.reap(self._served.home, self._limits)))

    async def withdraw(self) -> None:
        """The others shall leave no job to this worker: it drains, or its engine is away. The next claim ends that."""
        await self._everywhere("ZREM", "spare", self._worker_id)

    async def wake_another(self) -> None:
        """Puts the markers back, for a worker that may have taken one and cannot use it."""
        with contextlib.suppress(
            QueueFull
        ):  # memory is full: the others look by themselves after MAX_BLOCK_S
            await self._everywhere("ZADD", "marker", 0, "work")

    async def leave(self) -> None:
        """Removes this worker's record, so that the fleet does not wait for it to time out."""
        await asyncio.gather(
            self._everywhere("ZREM", "workers", self._worker_id),
            self.withdraw(),
            self._everywhere("DEL", f"worker:{self._worker_id}"),
        )

    async def _everywhere(self, command: str, suffix: str, *arguments: str | int) -> None:
        keys = [PoolKeys(queue).named(suffix) for queue in self._served.queues]
        await asyncio.gather(*(self._pipe.command(command, key, *arguments) for key in keys))

    async def close(self) -> None:
        await self._blocking.close()


@dataclass(frozen=True, slots=True)
class Chunk:
    """`data`: engine payloads joined by newlines; `seq`: number of the last of them within the token, from 1."""

    job_id: str
    token: int
    seq: int
    data: bytes


async def _unless_away(ask: Awaitable[Any]) -> Any:
    """None where the server that has the queue is away: that must not stop work of the others."""
    try:
        return await ask
    except RedisAway:
        return None


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def lease_of(row: list[bytes]) -> Lease:
    """A job as lua/claim.lua answers it."""
    job_id, token, service_class, endpoint, stream, attached, attempt, *more = row
    cost, deadline, tenant, need, preempts, heir, plan, prompt_tokens, choices, waited_ms, trace, body = more
    return Lease(
        job_id=job_id.decode(),
        token=int(token),
        service_class=ServiceClass(int(service_class)),
        endpoint=endpoint.decode(),
        stream=stream == b"1",
        attached=attached in (b"1", b"2"),  # 2: and it may begin anew
        attempt=int(attempt),
        run_s=float(cost) / 1000,
        deadline=float(deadline) / 1000,
        tenant=tenant.decode(),
        body=body,
        kv_tokens=int(need),
        preempts=int(preempts),
        heir=heir.decode(),
        plan=plan.decode(),
        prompt_tokens=int(prompt_tokens),
        choices=int(choices),
        waited_s=int(waited_ms) / 1000,
        trace=trace.decode(),
    )
