"""Admission: from a request to a submission that may be queued. Checks, resolves the model, predicts, finds room.

Used by the OpenAI routes (a connection waits for the answer) and by `/v1/jobs` (somebody will poll).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.types import Scope

from api import body
from api.admission import check_served
from api.errors import forbidden, invalid
from api.metrics.catalogue import ROUTED
from api.middleware import TENANT
from api.routing import Choice, Request
from api.services import Services
from broker import request_checks, tracing
from broker.errors import InvalidJob
from broker.heirs import with_heir
from broker.job import MAX_PRIORITY, ServiceClass, Submission, heir_id, new_job_id
from broker.rescue import degraded_text
from broker.tenants import ANYBODY, DEGRADE, FALLBACKS, Tenant
from predictor.prefix import conversation_key, prefix_chain

MAX_DEADLINE_S = 7 * 86_400.0
ATTACHED_RETAIN_S = 60.0  # an answer that was delivered whole is kept for late lookers only
TIERS = {
    "priority": ServiceClass.P0,
    "default": ServiceClass.P0,
    "auto": ServiceClass.P0,
    "flex": ServiceClass.P2,
}
OWN_FIELDS = ("priority", "service_tier")  # Headway's, not the engine's


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller asks of the queue by header, and who it is."""

    service_class: ServiceClass | None = None
    deadline_s: float | None = None
    tenant: Tenant = ANYBODY
    fallback: str = ""  # while nobody serves the pool; "": as its tenant says
    resets: bool = False  # an answer that has begun may begin anew
    trace: str = ""  # what it is part of: tracing.carried

    @classmethod
    def read(cls, scope: Scope) -> "Wishes":
        """Raises InvalidJob, ApiError."""
        service_class, deadline_s, fallback, resets = None, None, "", False
        for name, value in scope["headers"]:
            if not name.startswith(b"x-headway-"):
                continue
            text = value.decode("latin-1")
            if name == b"x-headway-class":
                service_class = parse_class(text, param="X-Headway-Class")
            elif name == b"x-headway-deadline":
                deadline_s = parse_deadline(text, param="X-Headway-Deadline")
            elif name == b"x-headway-fallback":
                fallback = one_of(FALLBACKS, text, param="X-Headway-Fallback")
            elif name == b"x-headway-retry":
                resets = bool(one_of(("reset",), text, param="X-Headway-Retry"))
        trace = tracing.carried(scope["headers"])
        return cls(service_class, deadline_s, scope[TENANT], fallback, resets, trace)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is right in itself. `body` goes to the engine; `document` is the same, parsed."""

    endpoint: str
    model: str
    pool: str
    service_class: ServiceClass
    priority: int
    deadline_s: float
    stream: bool
    document: dict[str, Any]
    body: bytes
    tenant: Tenant = ANYBODY
    choice: Choice | None = None  # of a route
    degraded: str = ""  # the pool that it was meant for
    fallback: str = ""  # what it does if nobody serves its pool; "": the pool has no fallback
    rescuable: bool = False  # it may go to the fallback of its pool, or of the one that it is escalated to
    resets: bool = False  # an answer that has begun may begin anew
    trace: str = ""

    def __post_init__(self) -> None:
        """Raises ApiError for what the caller's key may not be used for."""
        check_class(self.tenant, self.service_class)
        may = self.tenant.access.pools
        pools = {self.degraded or self.pool} | (
            {self.choice.heir} if self.choice and self.choice.heir else set()
        )
        if may and self.model not in may and not pools <= may:
            raise forbidden(f"this API key may not use the model {self.model[:80]!r}", param="model")


def check_class(tenant: Tenant, service_class: ServiceClass) -> None:
    """Raises ApiError."""
    if tenant.access.classes and service_class not in tenant.access.classes:
        raise forbidden(f"this API key may not use the class {service_class.name}", param="class")


async def divert(services: Services, asked: Asked, *, wishes: Wishes) -> Asked:
    """To the fallback of a pool that is out. Raises ApiError if the caller would rather have that; RedisAway."""
    if asked.endpoint == request_checks.EMBEDDINGS:  # vectors of two models cannot be compared
        return asked
    wanted, routed = wishes.fallback or asked.tenant.fallback, asked.choice is not None
    detour = await services.diversion.of(asked.pool, wanted=wanted, routed=routed)
    pools = (asked.pool, asked.choice.heir if asked.choice else "")
    leads_on = wanted == DEGRADE and not detour.degraded and any(map(services.diversion.fallback_of, pools))
    return replace(
        asked, pool=detour.pool, degraded=detour.degraded, fallback=detour.fallback, rescuable=leads_on
    )


def one_of(words: Sequence[str], text: str, *, param: str) -> str:
    """Raises ApiError."""
    if text not in words:
        raise invalid(f"{param} must be {' or '.join(words)}", param=param)
    return text


def parse_class(value: Any, *, param: str) -> ServiceClass:
    """Raises ApiError."""
    try:
        return ServiceClass.parse(value if isinstance(value, str) else repr(value))
    except InvalidJob as error:
        raise invalid(str(error), param=param) from None


def parse_deadline(value: Any, *, param: str) -> float:
    """Seconds, from a header's text or a body's number. Raises ApiError."""
    try:
        deadline_s = float(value) if type(value) in (str, int, float) else math.nan
    except (ValueError, OverflowError):
        deadline_s = math.nan
    if math.isnan(deadline_s):
        raise invalid(f"{param} must be a number of seconds", param=param, code="invalid_type") from None
    if not (math.isfinite(deadline_s) and 0 < deadline_s <= MAX_DEADLINE_S):
        raise invalid(f"{param} must be above 0 and at most {MAX_DEADLINE_S:.0f} seconds", param=param)
    return deadline_s


def parse_priority(value: Any) -> int:
    """Raises ApiError."""
    if value is None:
        return 0
    if type(value) is not int:
        raise request_checks.wrong("priority", value, wanted="an integer (lower first)")
    if abs(value) > MAX_PRIORITY:
        raise invalid(f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}", param="priority")
    return value


def parse_tier(value: Any) -> ServiceClass | None:
    """The class that OpenAI's `service_tier` stands for; None if it is absent. Raises ApiError."""
    if value is None:
        return None
    tier = TIERS.get(value) if isinstance(value, str) else None
    if tier is None:
        raise invalid(f"service_tier must be one of {', '.join(TIERS)}", param="service_tier")
    return tier


async def understand(services: Services, endpoint: str, *, raw: bytes, wishes: Wishes) -> Asked:
    """An OpenAI request. The body goes on as it came unless it carries fields of Headway. Raises ApiError, UnknownPool."""
    document = body.parse(raw)
    model = request_checks.model_name(document)
    request_checks.check(document, endpoint)
    priority, service_class = 0, wishes.service_class
    if "priority" in document or "service_tier" in document:
        priority = parse_priority(document.get("priority"))
        tier = parse_tier(document.get("service_tier"))
        service_class = tier if service_class is None else service_class
        document = {name: value for name, value in document.items() if name not in OWN_FIELDS}
        raw = orjson.dumps(document)
    service_class = class_of(service_class, wishes.tenant, otherwise=ServiceClass.P0)
    choice = await choose(
        services, model, request=Request(endpoint, document, wishes.tenant.name, service_class)
    )
    return Asked(
        endpoint=endpoint,
        model=model,
        pool=choice.placed.pool if choice else await services.fleet.resolve(model),
        service_class=service_class,
        priority=priority,
        deadline_s=wishes.deadline_s or services.settings.request_timeout_s,
        stream=document.get("stream") is True and endpoint != request_checks.EMBEDDINGS,
        document=document,
        body=raw,
        tenant=wishes.tenant,
        choice=choice,
        resets=wishes.resets,
        trace=wishes.trace,
    )


async def choose(services: Services, model: str, *, request: Request) -> Choice | None:
    """Where a route sends the request; None if the model is no route. A conversation is kept where it is sent."""
    route = services.config.route(model)
    if route is None:
        return None
    choice = await services.chooser.choose(route, request)
    why = choice.placed.why.partition(":")[0] or "threshold"
    services.tally.count(ROUTED, route.name, choice.placed.pool, choice.placed.kind, why)
    services.spawn(services.chooser.keep(choice, choice.placed.pool))
    return choice


def class_of(asked: ServiceClass | None, tenant: Tenant, *, otherwise: ServiceClass) -> ServiceClass:
    """What the request says, else the tenant's own default, else the route's."""
    if asked is not None:
        return asked
    return otherwise if tenant.default_class is None else tenant.default_class


async def attached_job(services: Services, asked: Asked) -> Submission:
    """A submission that a connection waits for. Raises ApiError if nobody serves the pool, unless the caller wants to wait for that."""
    await check_served(services, asked.pool, wish=asked.fallback)
    return attached_submission(services, asked, job_id=fresh_id(services, asked))


def fresh_id(services: Services, asked: Asked) -> str:
    """An id in one of the pool's queues."""
    return new_job_id(_pick(services, asked))


def elsewhere(services: Services, asked: Asked, *, job_id: str) -> str:
    """The id in another queue of the pool, after that one had no room. What was taken of limits, was for either."""
    return heir_id(job_id, _pick(services, asked))


def _pick(services: Services, asked: Asked) -> str:
    """Turns of one conversation meet in the same queue, where its prefix is warm."""
    shards = services.fleet.shards
    key = conversation_key(asked.document) if shards.is_split(asked.pool) else None
    return services.fleet.pick(asked.pool, key)


def plain_submission(services: Services, asked: Asked, *, job_id: str) -> Submission:
    """What a job is whoever waits for it: the request and its forecast."""
    job = Submission(
        job_id=job_id,
        service_class=asked.service_class,
        endpoint=asked.endpoint,
        body=asked.body,
        forecast=services.estimator.forecast(
            asked.pool,
            asked.document,
            tenant=asked.tenant.name,
            features=asked.choice.features if asked.choice else None,
        ),
        prefix=prefix_chain(asked.document, tenant=asked.tenant.name),
        stream=asked.stream,
        tenant=asked.tenant.name,
        weight=asked.tenant.weight,
        tenant_cap=asked.tenant.max_running,
        choices=request_checks.choices(asked.document),
        priority=asked.priority,
        deadline_s=asked.deadline_s,
        rescuable=asked.rescuable,
        trace=asked.trace,
        route=degraded_text(asked.pool, pool=asked.degraded) if asked.degraded else "",
    )
    return job if asked.choice is None else _routed(services, job, choice=asked.choice)


def _routed(services: Services, job: Submission, *, choice: Choice) -> Submission:
    """With its route's words, and the successor that it may be handed on to."""
    job = replace(job, route=choice.placed.text)
    if not choice.heir or job.pool == choice.heir:
        return job
    plan = choice.plan(weight=job.weight, priority=job.priority)
    return with_heir(job, choice.heir, plan=plan, shards=services.fleet.shards)


def attached_submission(services: Services, asked: Asked, *, job_id: str) -> Submission:
    """A connection of this process waits for the job."""
    retain_s = services.settings.replay_ttl_s
    return replace(
        plain_submission(services, asked, job_id=job_id),
        attached=True,
        resets=asked.resets,
        reply_to=services.hub.address(job_id),
        retain_s=retain_s if asked.stream else min(retain_s, ATTACHED_RETAIN_S),
    )
