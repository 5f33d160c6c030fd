"""The live page's document: once, or every second as server-sent events. For operators: it names everybody's jobs."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from api.overview import Overviews
from api.ownership import check_admin
from api.sse import EventStream, hung_up, named_event

PATH = "/v1/overview"

router = APIRouter(prefix=PATH, tags=["operations"])


@router.get("")
async def overview(request: Request) -> Response:
    """Pools and workers, what waits and for how long, the last hour's percentiles, costs, recent slow and failed jobs."""
    check_admin(request.scope)
    overviews: Overviews = request.app.state.overviews
    return Response(await overviews.latest(), media_type="application/json")


class Events:
    """Plain ASGI: an `overview` a second, and an `error` in its place while Redis is away."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_admin(scope)
        state = scope["app"].state
        out = EventStream(send, [], ping_s=state.services.settings.ping_s)
        telling = asyncio.create_task(_tell(state.overviews, out))
        gone = asyncio.create_task(hung_up(receive))
        try:
            await asyncio.wait((telling, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            out.stop()
            gone.cancel()
            telling.cancel()
        if not gone.done():
            await telling


async def _tell(overviews: Overviews, out: EventStream) -> None:
    async for name, document in overviews.follow():
        await out.write(named_event(name, document))
    await out.finish()


def routes() -> list[BaseRoute]:
    return [Route(f"{PATH}/events", Events(), methods=["GET"])]
