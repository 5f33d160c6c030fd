"""A job that takes another one's place, in another pool (ADR 10): what it is, and how it is queued.

Its id is fixed when the first job is queued, so submitting it again changes nothing. It is submitted before the first job
is marked as escalated; a crash in between is mended by whoever runs the first job next, who finds it there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from broker import fleet
from broker.connection import Pipe
from broker.errors import InvalidJob, QueueFull, UnknownJob
from broker.files import server_time
from broker.job import SHARD_MARK, Forecast, Lease, Status, Submission, heir_id, pool_of, queue_of
from broker.keys import PoolKeys
from broker.placement import degraded_from
from broker.policy import Limits
from broker.producer import Producer
from broker.shards import Shards

KEPT = ("cap", "retain", "meta", "pfx", "route", "notify", "status", "fall", "attached", "deaths", "origin")


@dataclass(frozen=True, slots=True)
class Plan:
    """When a first pass is not good enough, and what its successor inherits that no record holds.

    `window`: tokens that a cascade's verdict looks at; 0: none falls. `floor`: least confidence, 0 to 1. The text form is
    short, for it stands in the job's hash.
    """

    window: int = 0
    floor: float = 0.0
    weight: float = 0.0
    priority: int = 0

    def __str__(self) -> str:
        return f"{self.window} {self.floor:.4g} {self.weight:.6g} {self.priority}"

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Raises InvalidJob."""
        try:
            window, floor, weight, priority = text.split(" ")
            return cls(int(window), float(floor), float(weight), int(priority))
        except ValueError:
            raise InvalidJob(f"{text[:80]!r} is no plan of an escalation") from None


def with_heir(job: Submission, pool: str, *, plan: Plan, shards: Shards) -> Submission:
    """The job, which may be handed on to `pool`, to the shard that has its number where there is one."""
    shard = job.queue.partition(SHARD_MARK)[2]
    heir = heir_id(job.job_id, shards.pick(pool, int(shard) if shard else 0))
    return replace(job, heir=heir, plan=str(plan))


class Heirs:
    """What a worker does with successors of the jobs that it runs. `forecast(pool, body)`: what one will cost.

    `max_deaths`: of a job's workers that it survives.
    """

    def __init__(
        self,
        pipe: Pipe,
        producer: Producer,
        *,
        forecast: Callable[[str, dict[str, object]], Forecast],
        max_deaths: int = Limits().max_deaths,
    ) -> None:
        self._pipe = pipe
        self._producer = producer
        self._forecast = forecast
        self._max_deaths = max_deaths

    def prompt_tokens(self, lease: Lease, body: dict[str, object]) -> int:
        """As predicted, for a pass that was stopped before its engine counted."""
        return self._forecast(pool_of(lease.job_id), body).prompt_tokens

    async def exists(self, heir: str) -> bool:
        """Raises RedisAway."""
        return bool(await self._pipe.command("EXISTS", PoolKeys(queue_of(heir)).job(heir)))

    async def is_last_try(self, lease: Lease) -> bool:
        """Whether the job would not survive one more death of a worker, after others. Raises RedisAway."""
        deaths = int(
            await self._pipe.command("HGET", PoolKeys(queue_of(lease.job_id)).job(lease.job_id), "deaths")
            or 0
        )
        return 0 < deaths >= self._max_deaths

    async def submit(self, lease: Lease, body: dict[str, object], *, in_time: bool) -> bool:
        """Queues the job's successor with the deadline that is left. False: nobody would take it, or there is no room.

        `in_time`: also if what waits there already is predicted to take longer than the deadline that is left.
        Raises RedisAway: then call again.
        """
        keys, now = PoolKeys(queue_of(lease.job_id)), await server_time(self._pipe)
        values = await self._pipe.command("HMGET", keys.job(lease.job_id), *KEPT)
        kept = {name: value.decode() for name, value in zip(KEPT, values, strict=True) if value is not None}
        left_s = lease.deadline - now
        if left_s <= 0 or kept.get("status") != Status.RUNNING:
            return False
        if not await self._has_room(lease, left_s=left_s if in_time else None):
            return False
        try:
            await self._producer.submit(self._heir(lease, body, kept=kept, left_s=left_s))
        except QueueFull:
            return False
        return True

    async def undo(self, lease: Lease) -> None:
        """After the job was taken away meanwhile: its successor goes with it, unless it has its place rightly."""
        status = await self._pipe.command(
            "HGET", PoolKeys(queue_of(lease.job_id)).job(lease.job_id), "status"
        )
        if status is None or (Status(status.decode()).terminal and status != Status.ESCALATED.encode()):
            try:
                await self._producer.cancel(lease.heir)
            except UnknownJob:
                return

    async def _has_room(self, lease: Lease, *, left_s: float | None) -> bool:
        view = await fleet.look(self._pipe, queue_of(lease.heir))
        if view.draining or not view.served:
            return False
        if left_s is None or not view.slots:
            return True
        classes = range(int(lease.service_class) + 1)
        ahead_s = sum(view.counters.get(f"queued_ms:{c}", 0.0) for c in classes) / 1000
        return ahead_s / view.slots < left_s

    def _heir(
        self, lease: Lease, body: dict[str, object], *, kept: dict[str, str], left_s: float
    ) -> Submission:
        plan = Plan.parse(lease.plan)
        return Submission(
            job_id=lease.heir,
            service_class=lease.service_class,
            endpoint=lease.endpoint,
            body=lease.body,
            forecast=self._forecast(pool_of(lease.heir), body),
            stream=lease.stream,
            attached=lease.attached,
            tenant=lease.tenant,
            weight=plan.weight,
            tenant_cap=int(kept.get("cap", 0)),
            choices=lease.choices,
            prefix=kept.get("pfx", ""),
            priority=plan.priority,
            deadline_s=left_s,
            retain_s=float(kept["retain"]) / 1000,
            metadata=kept.get("meta", "").encode(),
            route=kept.get("route", ""),
            notify=kept.get("notify", ""),
            base_token=lease.token,
            resets=kept.get("attached") == "2",
            rescuable=self._may_be_rescued(kept),
            trace=lease.trace,
            origin=kept.get("origin", lease.job_id),
        )

    def _may_be_rescued(self, kept: dict[str, str]) -> bool:
        """If its new pool goes out; not twice, and not if it may have killed workers: it could come back to theirs."""
        brought = degraded_from(kept.get("route", ""))
        return "fall" in kept and not brought and int(kept.get("deaths", 0)) < self._max_deaths
