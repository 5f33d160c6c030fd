"""`/v1/batches`: many requests from a file, answered into a file. Here they are accepted and shown; Celery does them."""

import re
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Scope

from api import body, schema
from api.errors import invalid
from api.idempotency import key_of, reused
from api.ownership import own_batch, own_file, tenant_of
from api.rendering import Json
from api.routes.files import page, store_of
from api.services import Services, services_of
from api.submit import Wishes, check_class, parse_class
from broker import request_checks
from broker.batch_record import TIMES, BatchSpec, BatchView, message_for, metadata_of
from broker.batch_scripts import PLAN
from broker.batches import BatchStore
from broker.files import FileStore
from broker.job import ServiceClass

ENDPOINTS = tuple(request_checks.SUBJECTS)
WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW_S = 30 * 86_400.0
CLASS_KEY = "headway_class"  # in the metadata, for clients that can set no header

router = APIRouter(prefix="/v1/batches", tags=["batches"])


def store(services: Services) -> BatchStore:
    return BatchStore(services.pipe, ttl_s=services.settings.batch_ttl_s)


@router.post("", openapi_extra=schema.BATCH_BODY)
async def create_batch(request: Request) -> Json:
    """Accepts a batch. With an `Idempotency-Key` header a repeat returns the batch that there is."""
    services = services_of(request)
    wishes = Wishes.read(request.scope)
    key = key_of(request.scope["headers"])
    spec = understand(body.parse(await body.read(request.receive)), wishes=wishes, key=key)
    files = store_of(services)
    await _check_input(files, spec, scope=request.scope)
    batch = await store(services).create(spec)
    if differs(batch.spec, spec):
        raise reused("batch")
    await files.keep(spec.input_file_id, for_s=spec.window_s + services.settings.batch_ttl_s)
    name, ids = message_for(batch.batch_id, PLAN)
    services.celery_send(name, *ids)
    return Json(document(batch))


async def _check_input(files: FileStore, spec: BatchSpec, *, scope: Scope) -> None:
    """Raises UnknownFile, ApiError."""
    record = own_file(await files.get(spec.input_file_id), scope)
    if record.purpose != "batch":
        message = (
            f"the input file was uploaded with purpose {record.purpose!r}; a batch needs purpose 'batch'"
        )
        raise invalid(message, param="input_file_id")


class Listed(BaseModel):
    """The query of a listing."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=20, ge=1, le=100)
    after: str = Field(default="", description="the id that the last page ended with")


@router.get("")
async def list_batches(request: Request, listed: Annotated[Listed, Query()]) -> Json:
    """Newest first."""
    batches, tenant = store(services_of(request)), tenant_of(request.scope)
    found, more = await batches.list_batches(limit=listed.limit, after=listed.after, tenant=tenant.name)
    return Json(page([document(batch) for batch in found], more=more))


@router.get("/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> Json:
    """The batch as it is now."""
    return Json(document(own_batch(await store(services_of(request)).get(batch_id), request.scope)))


@router.post("/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> Json:
    """Feeds no more lines and aborts those that run; what is answered by then is kept."""
    services = services_of(request)
    batches = store(services)
    own_batch(await batches.get(batch_id), request.scope)
    for unit in await batches.cancel(batch_id):
        name, ids = message_for(batch_id, unit)
        services.celery_send(name, *ids)
    return Json(document(await batches.get(batch_id)))


def understand(asked: dict[str, Any], *, wishes: Wishes, key: str) -> BatchSpec:
    """Raises ApiError naming the field."""
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(asked.get(name), str):
            raise invalid(f"{name} is required, as a string", param=name, code="missing_required_parameter")
    if asked["endpoint"] not in ENDPOINTS:
        raise invalid(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    metadata = _metadata(asked.get("metadata"))
    service_class = wishes.service_class
    if service_class is None and CLASS_KEY in metadata:
        service_class = parse_class(metadata[CLASS_KEY], param=f"metadata.{CLASS_KEY}")
    if service_class not in (None, ServiceClass.P2, ServiceClass.P3):
        raise invalid("a batch is of class P2 or P3", param="class")
    own = wishes.tenant.default_class
    usual = own if own in (ServiceClass.P2, ServiceClass.P3) else ServiceClass.P2
    service_class = usual if service_class is None else service_class
    check_class(wishes.tenant, service_class)
    return BatchSpec(
        input_file_id=asked["input_file_id"],
        endpoint=asked["endpoint"],
        service_class=service_class,
        tenant=wishes.tenant.name,
        completion_window=asked["completion_window"],
        window_s=_window_s(asked["completion_window"]),
        metadata=orjson.dumps(metadata) if metadata else b"",
        key=key,
        pools=tuple(sorted(wishes.tenant.access.pools)),
    )


def _window_s(text: str) -> float:
    """OpenAI knows 24h only; any number of s, m, h or d up to 30 days is taken here."""
    match = WINDOW.fullmatch(text)
    window_s = float(match[1]) * UNIT_S[match[2]] if match else 0.0
    if not 0 < window_s <= MAX_WINDOW_S:
        raise invalid("completion_window must be such as 24h, at most 30d", param="completion_window")
    return window_s


def _metadata(value: Any) -> dict[str, str]:
    """OpenAI's limits: 16 pairs of strings, 64 and 512 characters."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > 16:
        raise invalid("metadata must be an object of at most 16 strings", param="metadata")
    for name, text in value.items():
        if not isinstance(text, str) or len(name) > 64 or len(text) > 512:
            raise invalid(
                "metadata's names and values are strings of up to 64 and 512 characters", param="metadata"
            )
    return value


def differs(there: BatchSpec, asked: BatchSpec) -> bool:
    """Whether a batch that was there already is not the one that is asked for now."""
    names = ("input_file_id", "endpoint", "service_class", "completion_window", "metadata")
    return any(getattr(there, name) != getattr(asked, name) for name in names)


def document(batch: BatchView) -> dict[str, Any]:
    """OpenAI's batch object, and the class."""
    spec = batch.spec
    errors = {"object": "list", "data": orjson.loads(batch.errors)} if batch.errors else None
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": spec.endpoint,
        "errors": errors,
        "input_file_id": spec.input_file_id,
        "completion_window": spec.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        **{name: batch.times.get(name) for name in TIMES},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": metadata_of(batch),
        "class": spec.service_class.name,
    }
