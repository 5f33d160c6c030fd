"""The door of the queue: puts a job in, or says why not and when to come again.

The limits themselves are kept by `lua/enqueue.lua`, exactly, whoever else submits. What is worked out here is the time:
from how fast the queue empties, as measured (`drain.py`).
"""

from api.errors import no_worker, pool_draining, too_late
from api.metering import Meter
from api.services import Services
from api.snapshots import Snapshot
from broker.errors import LimitReached, QueueFull, StartTooLate, UnknownJob
from broker.job import Accepted, ServiceClass, Submission
from broker.tenants import DEGRADE, WAIT, Tenant

MAX_RETRY_AFTER_S = 300.0
LOOK_AGAIN_S = 0.2  # at most so often for those who are refused
MARGIN = 1.5  # a job is refused if what is ahead of it takes so many times its deadline


class ShardFull(QueueFull):
    """Of a pool of several queues: another one may have room."""


async def check_served(services: Services, pool: str, *, wish: str = "") -> None:
    """For a connection that waits: raises ApiError if no worker serves the pool. One may just have come: looks again.

    `wish`: what the request does if nobody does. It may wait for that, or for its pool's fallback to get it.
    """
    model = services.fleet.model_of(pool)
    fallback = model.fallback if model and wish == DEGRADE else None
    for max_age_s in (1.0, 0.0):
        for each in (pool, fallback):
            if wish == WAIT or (each and (await services.fleet.look(each, max_age_s=max_age_s)).view.served):
                return
    if not services.fleet.was_away:
        raise no_worker(pool)


async def enqueue(services: Services, job: Submission, *, durable: bool = False) -> Accepted:
    """Raises ApiError, ShardFull, QueueFull, RedisAway."""
    room = await services.fleet.look(job.pool)
    if room.view.draining:
        raise pool_draining(job.pool)
    queues = len(services.fleet.shards.queues(job.pool))
    most_ahead_s = _most_ahead_s(room, job)
    if most_ahead_s is not None:
        most_ahead_s /= queues
    try:
        return await services.producer.submit(job, durable=durable, most_ahead_s=most_ahead_s)
    except LimitReached as full:
        if services.fleet.note_full(job.queue):
            message = f"{full}; another shard may have room"
            raise ShardFull(message, retry_after_s=full.retry_after_s) from None
        room = await services.fleet.look(job.pool, max_age_s=LOOK_AGAIN_S)
        raise QueueFull(
            str(full), retry_after_s=min(MAX_RETRY_AFTER_S, room.room_in_s(full, queues=queues))
        ) from None
    except StartTooLate as late:
        begin_s = late.ahead_s * queues / (room.run_s_per_s or 1.0)
        error = too_late(begin_s, job.deadline_s, service_class=job.service_class.name)
        raise error.retry_after(min(MAX_RETRY_AFTER_S, begin_s - job.deadline_s)) from None


async def metered(services: Services, job: Submission, *, tenant: Tenant) -> Meter | None:
    """What the job takes of its caller's limits; None if there are none, or if its idempotency key was used before.

    Raises ApiError (429), RedisAway, MemoryFull.
    """
    if not tenant.scopes or (not job.reply_to and await is_there(services, job.job_id)):
        return None
    return await services.metering.take(job, tenant)


async def is_there(services: Services, job_id: str) -> bool:
    """Whether the job was queued before. Raises RedisAway."""
    try:
        await services.producer.get(job_id, with_result=False)
    except UnknownJob:
        return False
    return True


def _most_ahead_s(room: Snapshot, job: Submission) -> float | None:
    """Predicted seconds that may be ahead of it. None unless somebody waits for it, and the rate is well measured."""
    if not job.attached or job.service_class > ServiceClass.P1 or not room.drain.is_sure:
        return None
    return None if room.run_s_per_s is None else MARGIN * job.deadline_s * room.run_s_per_s
