"""`Idempotency-Key`: a job that is submitted again under the same key is the same job.

The key is bound to a job id before the job is queued, and the queue takes an id once. So two submissions at once make
one job, and one whose sender or whose API process died in between is queued when it comes again. A connection with a
key that breaks off leaves its job alone: it is expected to come again, and then gets the answer from its beginning.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import orjson

from api.admission import check_served, is_there
from api.errors import ApiError, invalid
from api.services import Services
from api.submit import Asked, attached_submission, fresh_id
from broker import idempotency
from broker.job import Submission

HEADER = "Idempotency-Key"
MAX_CHARS = 255


@dataclass(frozen=True, slots=True)
class Claim:
    """The job that a key stands for. `first`: nobody has used the key before."""

    tenant: str
    key: str
    job_id: str
    first: bool
    ttl_s: float


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The header's text; "" if there is none. Raises ApiError."""
    raw = next((value for name, value in headers if name == b"idempotency-key"), None)
    if raw is None:
        return ""
    text = raw.decode("latin-1")
    if not (0 < len(text) <= MAX_CHARS and text.isascii() and text.isprintable()):
        raise invalid(f"{HEADER} must be 1 to {MAX_CHARS} printable ASCII characters", param=HEADER)
    return text


def reused(thing: str) -> ApiError:
    return ApiError(
        409, f"this idempotency key was used for another {thing}", code="idempotency_key_reused", param=HEADER
    )


async def keyed_job(services: Services, asked: Asked, *, key: str) -> Submission:
    """A submission that connections wait for, one after the other. Raises as `claim`; ApiError if nobody serves the pool."""
    retain_s = services.settings.replay_ttl_s
    claimed = await claim(services, asked, key=key, metadata=None, retain_s=retain_s)
    if claimed.first or not await is_there(services, claimed.job_id):
        await check_served(services, asked.pool, wish=asked.fallback)
        await prolong(services, claimed)
    job = attached_submission(services, asked, job_id=claimed.job_id)
    return replace(job, reply_to="", retain_s=retain_s)


async def claim(
    services: Services, asked: Asked, *, key: str, metadata: dict[str, str] | None, retain_s: float
) -> Claim:
    """Binds the key for as long as the job may live. `metadata` None: a connection waits for the job, nobody polls.

    Raises ApiError if the key stands for another request; RedisAway.
    """
    ttl_s = asked.deadline_s + retain_s
    wanted = fresh_id(services, asked)
    meant = f" {_digest(asked, metadata)}".encode()
    tenant = asked.tenant.name
    bound = await idempotency.bind(services.pipe, tenant, key=key, value=wanted.encode() + meant, ttl_s=ttl_s)
    if not bound.endswith(meant):
        raise reused("request")
    job_id = bound.removesuffix(meant).decode()
    return Claim(tenant, key, job_id, job_id == wanted, ttl_s)


async def prolong(services: Services, claimed: Claim) -> None:
    """For a job that is queued only now, though its key is older."""
    await idempotency.keep(services.pipe, claimed.tenant, key=claimed.key, ttl_s=claimed.ttl_s)


def _digest(asked: Asked, metadata: dict[str, str] | None) -> str:
    """Of what is asked for, whatever the order of its fields."""
    options = [
        asked.endpoint,
        asked.model,
        asked.service_class,
        asked.priority,
        asked.deadline_s,
        asked.stream,
    ]
    meaning = orjson.dumps([options, asked.document, metadata], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(meaning).hexdigest()
