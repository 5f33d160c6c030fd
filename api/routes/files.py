"""`/v1/files`: what batches read and write. Bytes stream to and from the storage; see `broker/files.py`."""

import hashlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from api import schema
from api.idempotency import key_of, reused
from api.ownership import own_file, tenant_of
from api.rendering import Json
from api.services import Services, services_of
from api.upload import receive_file
from broker import idempotency
from broker.errors import UnknownFile
from broker.files import FileQuery, FileRecord, FileStore, NewFile
from broker.storage import Storage

router = APIRouter(prefix="/v1/files", tags=["files"])


def store_of(services: Services) -> FileStore:
    settings = services.settings
    return FileStore(services.pipe, Storage(settings.files_url), ttl_s=settings.batch_ttl_s)


@router.post("", openapi_extra=schema.FILE_BODY)
async def upload_file(request: Request) -> Json:
    """A form with the fields `file` and `purpose` (`batch` for the input of a batch: one JSON request a line).

    With an `Idempotency-Key` header a repeat returns the file that there is.
    """
    services, key = services_of(request), key_of(request.scope["headers"])
    new, digest = NewFile(tenant=tenant_of(request.scope).name), hashlib.sha256()
    record = await receive_file(
        request,
        store_of(services),
        max_bytes=services.settings.max_file_bytes,
        new=new,
        seen=digest.update if key else _ignore,
    )
    if key:
        digest.update(f"\0{record.purpose}\0{record.filename}".encode())
        record = await _bound(services, record, key=key, digest=digest.hexdigest())
    return Json(document(record))


def _ignore(_: bytes) -> None:
    """A hash of a gigabyte takes a second."""


async def _bound(services: Services, record: FileRecord, *, key: str, digest: str) -> FileRecord:
    """The file that the key stands for; if that is another one, this one goes. Raises ApiError, RedisAway."""
    files, ttl_s = store_of(services), services.settings.batch_ttl_s
    value = f"{record.file_id} {digest}".encode()
    bound = await idempotency.bind(services.pipe, record.tenant, key=key, value=value, ttl_s=ttl_s)
    if bound == value:
        return record
    first, _, meant = bound.decode().partition(" ")
    try:
        there = await files.get(first)
    except UnknownFile:  # deleted meanwhile, or no file at all
        there = record
    if meant != digest:
        await files.delete(record.file_id)
        raise reused("upload")
    if there is not record:
        await files.delete(record.file_id)
    return there


class Listed(BaseModel):
    """The query of a listing."""

    model_config = ConfigDict(extra="forbid")

    purpose: str = ""
    limit: int = Field(default=1000, ge=1, le=10_000)
    after: str = Field(default="", description="the id that the last page ended with")
    order: Literal["asc", "desc"] = "desc"


@router.get("")
async def list_files(request: Request, listed: Annotated[Listed, Query()]) -> Json:
    """Newest first, unless `order` says otherwise."""
    oldest_first, tenant = listed.order == "asc", tenant_of(request.scope).name
    query = FileQuery(listed.purpose, listed.limit, listed.after, oldest_first, tenant)
    found, more = await store_of(services_of(request)).list_files(query)
    return Json(page([document(record) for record in found], more=more))


@router.get("/{file_id}")
async def get_file(request: Request, file_id: str) -> Json:
    """What is known of a file."""
    return Json(document(own_file(await store_of(services_of(request)).get(file_id), request.scope)))


@router.get("/{file_id}/content")
async def get_content(request: Request, file_id: str) -> StreamingResponse:
    """The file's bytes."""
    files = store_of(services_of(request))
    record = own_file(await files.get(file_id), request.scope)
    chunks = files.read(file_id)
    first = await anext(chunks, b"")  # before the status is sent: the bytes may be gone

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    headers = {"content-length": str(record.size_bytes), "x-content-type-options": "nosniff"}
    return StreamingResponse(body(), media_type="application/octet-stream", headers=headers)


@router.delete("/{file_id}")
async def delete_file(request: Request, file_id: str) -> Json:
    """Removes it at once. A batch that still reads it reports the lines it could not."""
    files = store_of(services_of(request))
    own_file(await files.get(file_id), request.scope)
    await files.delete(file_id)
    return Json({"id": file_id, "object": "file", "deleted": True})


def document(record: FileRecord) -> dict[str, Any]:
    """OpenAI's file object."""
    return {
        "id": record.file_id,
        "object": "file",
        "bytes": record.size_bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": record.status,
    }


def page(documents: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """OpenAI's list object."""
    ids = {"first_id": documents[0]["id"], "last_id": documents[-1]["id"]} if documents else {}
    return {"object": "list", "data": documents, "first_id": None, "last_id": None, **ids, "has_more": more}
