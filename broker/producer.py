"""What callers of the queue do: submit, look, cancel, list, re-drive. Used by the API, the batch feeder and the CLI.

Every method is safe to repeat: a job is known by its id.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker import enqueued, fleet, policy, scripts
from broker.connection import Pipe
from broker.errors import RedisAway, RedisSilent, UnknownJob
from broker.job import (
    Accepted,
    Ahead,
    JobView,
    ServiceClass,
    Status,
    Submission,
    new_job_id,
    queue_of,
)
from broker.keys import PoolKeys
from broker.record import Attempt, view
from broker.script import Call

SUBMIT_PATIENCE_S = 2.0
LEAST_PAGE = 100  # of an index that is searched, which may hold mostly others' jobs
BULK = 200  # jobs per script of `submit_bulk`: it holds up everybody else for 2 ms


@dataclass(frozen=True, slots=True)
class Query:
    """Which jobs to list: newest first, at most `limit`, older than the job `after`."""

    statuses: frozenset[Status] = frozenset()
    classes: frozenset[ServiceClass] = frozenset()
    limit: int = 20
    after: str = ""
    tenant: str = ""  # "": of everybody


class Producer:
    """A thin, typed face over the scripts. `pipe` is shared with whoever else lives in this process."""

    def __init__(
        self,
        pipe: Pipe,
        order: policy.Order | None = None,
        *,
        limits_of: Callable[[str], policy.QueueLimits] = lambda _: policy.QueueLimits(),
    ) -> None:
        """`limits_of`: what a queue takes, by its name."""
        self._pipe = pipe
        self._order = order or policy.Order()
        self._limits_of = limits_of
        self._announcer = fleet.Announcer(pipe)
        self._gave_up_at = float("-inf")  # loop time; as long as nothing has got through since

    async def submit(
        self, job: Submission, *, durable: bool = False, most_ahead_s: float | None = None
    ) -> Accepted:
        """Queues one job. Repeats itself by id while Redis is away, up to `SUBMIT_PATIENCE_S`.

        `durable`: returns when it is on the server's disk, where the server can tell (docs/durability.md).
        `most_ahead_s`: it is refused if jobs of more predicted seconds would be claimed before it.
        Raises RedisAway (nothing is promised), QueueFull.
        """
        call = scripts.enqueue(job, self._order, admission=self._admission(job, most_ahead_s=most_ahead_s))
        return enqueued.accepted([job], (await self._insist([call], durable=durable))[0])[0]

    def _admission(self, job: Submission, *, most_ahead_s: float | None = None) -> policy.Admission:
        """Nobody asks where a job is that a connection waits for."""
        return policy.Admission(self._limits_of(job.queue), most_ahead_s, locate=not job.attached)

    async def submit_many(self, jobs: Sequence[Submission], *, durable: bool = False) -> list[Accepted]:
        """Queues all jobs in one round trip. On RedisAway, QueueFull some may be queued: submit the same ids again."""
        calls = [scripts.enqueue(job, self._order, admission=self._admission(job)) for job in jobs]
        answers = await self._insist(calls, durable=durable)
        return [enqueued.accepted([job], answer)[0] for job, answer in zip(jobs, answers, strict=True)]

    async def submit_bulk(self, jobs: Sequence[Submission]) -> list[Accepted]:
        """As `submit_many`, at half the cost to Redis, for many jobs of few kinds (`scripts.alike`).

        Positions are not looked up (-1). Past a limit `BULK` jobs are refused together; on QueueFull too some may be
        queued: submit the same ids again.
        """
        kinds: dict[tuple[object, ...], list[Submission]] = {}
        for job in jobs:
            kinds.setdefault(scripts.alike(job), []).append(job)
        parts = [kind[at : at + BULK] for kind in kinds.values() for at in range(0, len(kind), BULK)]
        tasks = []
        for part in parts:
            tasks.append(asyncio.create_task(self._submit_part(part)))
            await asyncio.sleep(0)  # so that it is on its way while the next one is put together
        await asyncio.gather(*tasks, return_exceptions=True)  # all of them, before one raises
        answers = [task.result() for task in tasks]
        found = {each.job_id: each for answer in reversed(answers) for each in reversed(answer)}
        return [found[job.job_id] for job in jobs]

    async def _submit_part(self, jobs: Sequence[Submission]) -> list[Accepted]:
        """One script."""
        admission = policy.Admission(self._limits_of(jobs[0].queue), locate=False)
        call = scripts.enqueue_many(jobs, self._order, admission=admission)
        return enqueued.accepted(jobs, (await self._insist([call]))[0])

    async def _insist(self, calls: Sequence[Call], *, durable: bool = False) -> list[Any]:
        """All answers. Repeats all calls for `SUBMIT_PATIENCE_S` while Redis is away; then raises RedisAway.

        Those that come after one has given up try once; and nobody waits again for a server that hangs.
        """
        now = asyncio.get_running_loop().time
        is_known = now() - self._gave_up_at < SUBMIT_PATIENCE_S
        give_up = now() + (0.0 if is_known else SUBMIT_PATIENCE_S)
        while True:
            try:
                await self._announcer.tell(calls)
                answers = await self._pipe.run_all(calls, durable=durable)
            except RedisAway as error:
                if isinstance(error, RedisSilent) or now() >= give_up:
                    self._gave_up_at = now()
                    raise
                await asyncio.sleep(0.1)
            else:
                self._gave_up_at = float("-inf")
                return answers

    async def feed(self, job_id: str) -> bool:
        """Lets a held job into its ready set. False if it was not held any more."""
        return bool(await self._pipe.run(scripts.feed(job_id)))

    async def cancel(self, job_id: str) -> Status:
        """Ends the job unless it has ended; returns its status afterwards. Raises UnknownJob."""
        before = await self._pipe.run(scripts.cancel(job_id))
        if before is None:
            raise UnknownJob(f"there is no job {job_id} (or its record has expired)")
        status = Status(before.decode())
        if status is Status.ESCALATED:
            return await self.cancel((await self._get(job_id, with_result=False)).heir)
        return status if status.terminal else Status.CANCELLED

    async def expire(self, job_id: str) -> None:
        """What the reaper does within a second: ends the job if its deadline has passed. Raises RedisAway."""
        await self._pipe.run(scripts.cancel(job_id, if_overdue=True))

    async def get(self, job_id: str, *, with_result: bool = True) -> JobView:
        """The job as it is now, with its answer or error; of one that was escalated its successor, which has its place.

        Raises UnknownJob, InvalidJob.
        """
        job = await self._get(job_id, with_result=with_result)
        return await self._last(job, with_result=with_result)

    async def _last(self, job: JobView, *, with_result: bool) -> JobView:
        """The pass that has the job's place now, with all before it. Raises UnknownJob if a successor's record is gone."""
        while job.status is Status.ESCALATED:
            job = replace(await self._get(job.heir, with_result=with_result), earlier=job.passes)
        return job

    async def whole(self, job: JobView) -> JobView:
        """A successor with the passes before it, and so under the id that its caller knows, as long as that is kept."""
        if job.origin and not job.earlier:
            with contextlib.suppress(UnknownJob):
                found = await self.get(job.origin)
                return found if found.job_id == job.job_id else job
        return job

    async def _get(self, job_id: str, *, with_result: bool) -> JobView:
        keys = PoolKeys(queue_of(job_id))
        asked = [self._pipe.command("HGETALL", keys.job(job_id))]
        if with_result:
            asked.append(self._pipe.command("GET", keys.result(job_id)))
        flat, *rest = await asyncio.gather(*asked)
        if not flat:
            raise UnknownJob(f"there is no job {job_id} (or its record has expired)")
        return view(job_id, dict(zip(flat[::2], flat[1::2], strict=True)), result=rest[0] if rest else None)

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Drops records of ended jobs whose answers have been stored elsewhere.

        Jobs that have not ended are left alone, and so are dead letters.
        """
        await asyncio.gather(*(self._forget(job_id) for job_id in job_ids))

    async def _forget(self, job_id: str) -> None:
        keys = PoolKeys(queue_of(job_id))
        asked = self._pipe.command("HGET", keys.job(job_id), "status")
        status, dead = await asyncio.gather(asked, self._pipe.command("ZSCORE", keys.named("dead"), job_id))
        if status is None or dead is not None or not Status(status.decode()).terminal:
            return
        names = (keys.job(job_id), keys.result(job_id), keys.output(job_id), keys.history(job_id))
        await asyncio.gather(*(self._pipe.command("PEXPIRE", name, 1000) for name in names))

    async def ahead(self, job_id: str) -> Ahead | None:
        """What would be claimed before the job, or None if it is not ready to be claimed."""
        found = await self._pipe.run(scripts.ahead(job_id, self._order.aging))
        return Ahead(int(found[0]), int(found[1]) / 1000) if found else None

    async def list_jobs(self, pool: str, query: Query) -> list[JobView]:
        """Jobs that were submitted to be polled, newest first. Looks at no more than ten pages of the index."""
        keys, found, page = PoolKeys(pool), list[JobView](), max(query.limit, LEAST_PAGE)
        start = await self._rank_after(keys, query.after) if query.after else 0
        for _ in range(10):
            stop = start + page - 1
            ids = [
                i.decode() for i in await self._pipe.command("ZREVRANGE", keys.named("index"), start, stop)
            ]
            flats = await asyncio.gather(*(self._pipe.command("HGETALL", keys.job(i)) for i in ids))
            views = [
                view(i, dict(zip(f[::2], f[1::2], strict=True)), result=None)
                for i, f in zip(ids, flats, strict=True)
                if f
            ]
            views = list(await asyncio.gather(*(self._now(v) for v in views)))
            found += [v for v in views if matches(v, query)]
            start = stop + 1
            if len(found) >= query.limit or len(ids) < page:
                break
        return found[: query.limit]

    async def _now(self, job: JobView) -> JobView:
        """Of a job that was escalated its successor, where that is still known."""
        with contextlib.suppress(UnknownJob):
            return await self._last(job, with_result=False)
        return job

    async def _rank_after(self, keys: PoolKeys, after: str) -> int:
        """How many of the pool's jobs are not older than `after`, which may be a job of any pool."""
        index = keys.named("index")
        score = await self._pipe.command("ZSCORE", PoolKeys(queue_of(after)).named("index"), after)
        if score is None:
            raise UnknownJob(f"there is no job {after} to list after (or it is no longer listed)")
        at = score.decode()
        newer, equal = await asyncio.gather(
            self._pipe.command("ZCOUNT", index, f"({at}", "+inf"),
            self._pipe.command("ZRANGEBYSCORE", index, at, at),
        )
        return int(newer) + len([name for name in equal if name.decode() >= after])

    async def history(self, job_id: str) -> list[Attempt]:
        """What became of the attempts that did not end the job, the newest 20, oldest first."""
        key = PoolKeys(queue_of(job_id)).history(job_id)
        return [Attempt.parse(entry) for entry in await self._pipe.command("LRANGE", key, 0, -1)]

    async def dead(self, pool: str, *, limit: int = 100) -> list[str]:
        """Ids of the pool's dead letters, newest first."""
        return [
            i.decode()
            for i in await self._pipe.command("ZREVRANGE", PoolKeys(pool).named("dead"), 0, limit - 1)
        ]

    async def redrive(self, job_id: str, *, deadline_s: float = policy.DAY_S) -> str:
        """Submits a dead letter again as a new job, whose id is returned. Raises UnknownJob."""
        last_id = (await self.get(job_id, with_result=False)).job_id
        new_id = new_job_id(queue_of(last_id))
        if not await self._pipe.run(scripts.redrive(last_id, new_id, deadline_s=deadline_s)):
            raise UnknownJob(f"{job_id} is not a dead letter, or its request has expired")
        return new_id


def matches(job: JobView, query: Query) -> bool:
    """By tenant, status and class."""
    return (
        query.tenant in ("", job.tenant)
        and (not query.statuses or job.status in query.statuses)
        and (not query.classes or job.service_class in query.classes)
    )
