"""For operators and for programs that ask what is there: health, metrics, fleet, models, the live page."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from api import documents
from api.metrics import scrape as scraping
from api.ownership import tenant_of
from api.page import PAGE_MAY, live_page
from api.rendering import Json
from api.services import Services, services_of
from broker.errors import RedisAway, UnknownPool
from broker.fleet import PoolView
from broker.route_config import RouteConfig

READY_TIMEOUT_S = 2.0
EPOCH = 1_764_547_200  # OpenAI's list wants a date of birth; this is Headway's own: 2025-12-01

router = APIRouter()


@router.get("/healthz", tags=["operations"])
async def healthz() -> Json:
    """The process is alive."""
    return Json({"status": "ok"})


@router.get("/readyz", tags=["operations"])
async def readyz(request: Request) -> Json:
    """200 if Redis answers and every configured pool has a ready worker, else 503 with the reasons."""
    reasons = await _unready(services_of(request))
    if reasons:
        return Json({"status": "not ready", "reasons": reasons}, status_code=503)
    return Json({"status": "ready"})


async def _unready(services: Services) -> list[str]:
    pools = [model.pool for model in services.config.models]
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await services.pipe.command("PING")
            views = await services.fleet.views(pools, max_age_s=0.0)
    except (RedisAway, TimeoutError) as error:
        return [f"Redis does not answer: {str(error) or 'it took too long'}"]
    return [f"no ready worker in the pool {view.pool!r}" for view in views if not view.ready_workers]


@router.get("/metrics", tags=["operations"])
async def scrape(request: Request) -> Response:
    """Prometheus' text format."""
    text = await scraping.scrape(services_of(request), caller=tenant_of(request.scope))
    return Response(text, media_type="text/plain; version=0.0.4")


@router.get("/v1/fleet", tags=["operations"])
async def fleet(request: Request) -> Json:
    """Pools with their workers, what waits, and how evenly the work lies."""
    cache = services_of(request).fleet
    views = await cache.views()
    pools = [documents.pool_document(view, cache.model_of(view.pool)) for view in views]
    return Json({"object": "fleet", "pools": pools, "balance": documents.fleet_balance(views)})


@router.get("/v1/models", tags=["openai"])
async def list_models(request: Request) -> Json:
    """Every name that `model` may be: pools and their aliases."""
    return Json({"object": "list", "data": await _models(services_of(request))})


@router.get("/v1/models/{model:path}", tags=["openai"])
async def get_model(request: Request, model: str) -> Json:
    """One of them."""
    services = services_of(request)
    found = next((entry for entry in await _models(services) if entry["id"] == model), None)
    if found is None:
        await services.fleet.resolve(model)
        raise UnknownPool(f"there is no model {model!r}")
    return Json(found)


async def _models(services: Services) -> list[dict[str, Any]]:
    cache = services.fleet
    entries: list[dict[str, Any]] = []
    for view in await cache.views():
        model = cache.model_of(view.pool)
        names = (view.pool, *(model.aliases if model else ()))
        entries += [_model(name, view, services=services) for name in names]
    return entries + [_route(route) for route in services.config.routes]


def _route(route: RouteConfig) -> dict[str, Any]:
    headway = {"route": {"small": route.small, "large": route.large}, "pool": None, "note": None}
    return {"id": route.name, "object": "model", "created": EPOCH, "owned_by": "headway", "headway": headway}


def _model(name: str, view: PoolView, *, services: Services) -> dict[str, Any]:
    document = documents.pool_document(view, services.fleet.model_of(view.pool))
    headway = {key: document[key] for key in ("pool", "embedded", "note")}
    headway |= {"engine": ", ".join(document["engines"]), "workers": len(view.ready_workers)}
    return {"id": name, "object": "model", "created": EPOCH, "owned_by": "headway", "headway": headway}


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The live page: one file, nothing from elsewhere."""
    return HTMLResponse(
        live_page(), headers={"cache-control": "no-cache", "content-security-policy": PAGE_MAY}
    )


@router.get("/favicon.ico", include_in_schema=False)
async def favicon() -> Response:
    """None; spares the log a 404."""
    return Response(status_code=204)
