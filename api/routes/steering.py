"""What an operator tells pools and single workers: pause, resume, drain. Kept in Redis (broker/steering.py)."""

from fastapi import APIRouter, Request

from api import documents
from api.ownership import check_admin
from api.rendering import Json
from api.services import services_of
from broker.steering import Wish, steer_pool, steer_worker

router = APIRouter(prefix="/v1/fleet", tags=["operations"])


@router.post("/{pool}/pause")
async def pause(request: Request, pool: str) -> Json:
    """Nothing more is claimed from the pool; what runs goes on, and jobs are still accepted."""
    return await _steer(request, pool, wish=Wish.PAUSE)


@router.post("/{pool}/drain")
async def drain(request: Request, pool: str) -> Json:
    """New jobs are refused with 503 `pool_draining`; what waits is served. A pause ends."""
    return await _steer(request, pool, wish=Wish.DRAIN)


@router.post("/{pool}/resume")
async def resume(request: Request, pool: str) -> Json:
    """Undoes a pause and a drain."""
    return await _steer(request, pool, wish=Wish.RESUME)


@router.post("/{pool}/workers/{worker_id}/pause")
async def pause_worker(request: Request, pool: str, *, worker_id: str) -> Json:
    """The worker claims nothing more; what it runs goes on."""
    return await _steer(request, pool, worker_id=worker_id, wish=Wish.PAUSE)


@router.post("/{pool}/workers/{worker_id}/drain")
async def drain_worker(request: Request, pool: str, *, worker_id: str) -> Json:
    """The worker claims nothing more, finishes what it runs or hands it back within HEADWAY_DRAIN_S, and leaves."""
    return await _steer(request, pool, worker_id=worker_id, wish=Wish.DRAIN)


@router.post("/{pool}/workers/{worker_id}/resume")
async def resume_worker(request: Request, pool: str, *, worker_id: str) -> Json:
    """Undoes a pause. A worker that drains does not come back."""
    return await _steer(request, pool, worker_id=worker_id, wish=Wish.RESUME)


async def _steer(request: Request, name: str, *, wish: Wish, worker_id: str = "") -> Json:
    """The pool as it is then. Raises ApiError without the admin scope, UnknownPool, UnknownWorker, RedisAway."""
    check_admin(request.scope)
    services = services_of(request)
    cache = services.fleet
    pool = await cache.resolve(name)
    await cache.pools()
    if worker_id:
        await steer_worker(services.pipe, cache.queues(pool), worker_id=worker_id, wish=wish)
    else:
        await steer_pool(services.pipe, cache.queues(pool), wish=wish)
    view = (await cache.look(pool, max_age_s=0.0)).view
    return Json(documents.pool_document(view, cache.model_of(pool)))
