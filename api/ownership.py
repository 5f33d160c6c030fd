"""Whose things are: a tenant finds its own jobs, files and batches. Another's are not there (404), whatever is done to them.

A key with the admin scope also reaches other tenants' failed jobs: dead letters are an operator's business. Of their other jobs it
reads what happened (the live page's stories), and no text.
"""

from dataclasses import replace

from starlette.types import Scope

from api.errors import forbidden
from api.middleware import TENANT
from api.services import Services
from broker.batch_record import BatchView
from broker.errors import InvalidJob, UnknownBatch, UnknownFile, UnknownJob
from broker.files import FileRecord
from broker.job import JobView, Status, queue_of
from broker.tenants import Tenant


def tenant_of(scope: Scope) -> Tenant:
    tenant: Tenant = scope[TENANT]
    return tenant


def known(job_id: str) -> str:
    """The id. Raises UnknownJob for text that cannot be one."""
    try:
        queue_of(job_id)
    except InvalidJob as error:
        raise UnknownJob(str(error)) from None
    return job_id


async def own_job(services: Services, scope: Scope, *, job_id: str) -> JobView:
    """The job as it is now, without its answer. Raises UnknownJob, RedisAway."""
    job = await services.producer.get(known(job_id), with_result=False)
    if is_own(job, scope):
        return job
    raise UnknownJob(f"there is no job {job_id} (or its record has expired)")


def is_own(job: JobView, scope: Scope) -> bool:
    tenant = tenant_of(scope)
    return job.tenant == tenant.name or (tenant.access.admin and job.status is Status.FAILED)


async def check_readable(services: Services, scope: Scope, *, job_id: str) -> None:
    """An operator may read what happened to anybody's job (`readable`). Raises UnknownJob, RedisAway."""
    if not tenant_of(scope).access.admin:
        await own_job(services, scope, job_id=job_id)


def readable(job: JobView, scope: Scope) -> JobView:
    """What the caller may read of it: of another's neither its answer nor what its caller noted with it."""
    return job if is_own(job, scope) else replace(job, result=None, metadata=b"")


def own_file(record: FileRecord, scope: Scope) -> FileRecord:
    """Raises UnknownFile."""
    if record.tenant != tenant_of(scope).name:
        raise UnknownFile(f"there is no file {record.file_id!r} (or it has expired)")
    return record


def own_batch(batch: BatchView, scope: Scope) -> BatchView:
    """Raises UnknownBatch."""
    if batch.spec.tenant != tenant_of(scope).name:
        raise UnknownBatch(f"there is no batch {batch.batch_id!r} (or its record has expired)")
    return batch


def check_admin(scope: Scope) -> None:
    """Raises ApiError."""
    if not tenant_of(scope).access.admin:
        raise forbidden("this needs an API key with the admin scope")
