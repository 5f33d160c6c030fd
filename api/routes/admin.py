"""For operators: reads `headway.yaml` again, in this process. Others see by the file that it has changed."""

from fastapi import APIRouter, Request

from api.errors import ApiError
from api.ownership import check_admin
from api.rendering import Json
from api.services import services_of
from broker.errors import ConfigError

router = APIRouter(prefix="/admin", tags=["operations"])


@router.post("/reload")
async def reload(request: Request) -> Json:
    """What has changed, and what of it is not in force before something is started again. A bad file changes nothing."""
    check_admin(request.scope)
    services = services_of(request)
    try:
        change = services.live.reload()
    except ConfigError as error:
        raise ApiError(422, f"{error}; what was read before stays in force", code="invalid_config") from None
    return Json({"object": "reload", "changed": change.changed, "needs_restart": change.restart})
