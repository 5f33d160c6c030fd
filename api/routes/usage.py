"""`GET /v1/usage`: what jobs have used, by day, tenant, class and model. A tenant sees its own, an operator everybody's."""

import csv
import io
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from api.costs import COUNTS, grouped, instead_document, is_priced, pools_of, used_document
from api.errors import invalid
from api.ownership import tenant_of
from api.rendering import Json
from api.services import services_of
from broker import accounts
from broker.accounts import DAYS_KEPT, Row, Used
from predictor.counterfactual import instead

USUAL_DAYS = 30
GROUPS = ("day", "tenant", "class", "model")
COLUMNS = (*COUNTS, "gpu_seconds", "usd")

router = APIRouter(prefix="/v1/usage", tags=["operations"])


class Asked(BaseModel):
    """The query."""

    model_config = ConfigDict(extra="forbid")

    first: date | None = Field(
        default=None, alias="from", description="a day (UTC), such as 2026-11-01; default: 30 days up to `to`"
    )
    last: date | None = Field(default=None, alias="to", description="the last day, included; default: today")
    by: str = Field(default="day", description="some of day, tenant, class and model, comma separated")
    form: Literal["json", "csv"] = Field(default="json", alias="format")


@router.get("")
async def get_usage(request: Request, asked: Annotated[Asked, Query()]) -> Response:
    """Requests, tokens, GPU-seconds and money of the days that are asked for, and what they would have been without prefix
    reuse and with the larger models only. Days are kept for 400 days."""
    services = services_of(request)
    first, last = _days(asked)
    by = _groups(asked.by)
    queues = await accounts.accounted(services.pipe)
    rows = await _rows(request, queues, first=first, last=last)
    priced = is_priced(services.config)
    found = [
        dict(zip(by, place, strict=True)) | used_document(used, priced=priced)
        for place, used in grouped(rows, by)
    ]
    if asked.form == "csv":
        return Response(_table(found, by), media_type="text/csv; charset=utf-8")
    by_pool = {place[0]: used for place, used in grouped(rows, ("model",))}
    pools = pools_of(await accounts.totals(services.pipe, queues), services.config)
    return Json(
        {
            "object": "usage",
            "from": str(first),
            "to": str(last),
            "data": found,
            "total": used_document(sum(by_pool.values(), Used()), priced=priced),
            "instead": instead_document(instead(by_pool, pools), services.config),
        }
    )


async def _rows(request: Request, queues: Sequence[str], *, first: date, last: date) -> list[Row]:
    """Of everybody whose usage the caller may see. Raises RedisAway."""
    services = services_of(request)
    tenant = tenant_of(request.scope)
    rows = await accounts.usage(services.pipe, queues, first=first, last=last)
    return [row for row in rows if tenant.access.admin or row.tenant == tenant.name]


def _days(asked: Asked) -> tuple[date, date]:
    """Raises ApiError."""
    last = asked.last or accounts.today()
    try:
        first = asked.first or last - timedelta(USUAL_DAYS - 1)
    except OverflowError:
        raise invalid("there is no such time", param="to") from None
    if first > last:
        raise invalid(f"`from` ({first}) is after `to` ({last})", param="from")
    if (last - first).days >= DAYS_KEPT:
        raise invalid(f"no more than {DAYS_KEPT} days are kept, nor may be asked for", param="from")
    return first, last


def _groups(text: str) -> tuple[str, ...]:
    """Each once, in the order in which they were named. Raises ApiError."""
    named = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if not set(named) <= set(GROUPS):
        raise invalid(f"`by` must be some of {', '.join(GROUPS)}, comma separated", param="by")
    return named


def _table(found: list[dict[str, Any]], by: tuple[str, ...]) -> str:
    """RFC 4180; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*by, *COLUMNS])
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()
