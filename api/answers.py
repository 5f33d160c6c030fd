"""What every operation answers, for /openapi.json: the documents of `documents.py` and of the routes, and the errors of each.

`make fuzz` compares this with what the API says (benchmarks/fuzz.py), tests/api/test_answers.py the fields of each document.
"""

from collections.abc import Mapping
from typing import Any

from broker.batch_record import TIMES, BatchStatus
from broker.job import ServiceClass, Status

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
ANYTHING: Schema = {}
OPEN: Schema = {"type": "object", "additionalProperties": True}
CLASS: Schema = {"enum": [each.name for each in ServiceClass]}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(fields: Schema, *, optional: Schema | None = None) -> Schema:
    """All of `fields` are always there. More may come with a later version."""
    return {"type": "object", "properties": fields | (optional or {}), "required": list(fields)}


def kind(name: str) -> Schema:
    return {"const": name}


def page(name: str, *, ids: bool) -> Schema:
    ends = {"first_id": maybe(TEXT), "last_id": maybe(TEXT)} if ids else {}
    return record({"object": kind("list"), "data": many(ref(name)), **ends, "has_more": FLAG})


def events(*names: str) -> Schema:
    """Server-sent ones: OpenAPI 3.1 has no word for each of them, so that the schema is of one, as OpenAI's is."""
    return {
        "type": "object",
        "properties": {"data": TEXT, "id": TEXT} | ({"event": {"enum": list(names)}} if names else {}),
        "required": ["data", "event"] if names else ["data"],
    }


SENT_EVENTS = "text/event-stream"
JOB_EVENTS = events("status", "chunk", "reset", "gap", "done")
BY_CLASS = record({each.name: COUNT for each in ServiceClass})
ROUTED: Schema = {
    "route": TEXT,
    "degraded": TEXT,
    "confidence": maybe(NUMBER),
    "escalations": many(OPEN),
}
TOLD: Schema = {  # of one job, not in lists
    "forecast": OPEN,
    "story": many(record({"at": NUMBER, "event": TEXT, "detail": TEXT})),
}
ACCEPTED: Schema = {
    "id": TEXT,
    "object": kind("job"),
    "status": {"enum": [each.value for each in Status if each is not Status.ESCALATED]},
    "class": CLASS,
    "model": TEXT,
    "pool": TEXT,
    "endpoint": TEXT,
    "position": maybe(COUNT),
    "predicted": record(
        {"start_s": maybe(NUMBER), "run_s": NUMBER, "output_tokens": NUMBER}, optional={"tool_call": NUMBER}
    ),
    "metadata": {"type": "object", "additionalProperties": TEXT},
}
MOMENTS = (
    "created_at",
    "claimed_at",
    "first_token_at",
    "finished_at",
    "queued_s",
    "ttft_s",
    "run_s",
    "total_s",
)
KNOWN: Schema = {
    "created_at": NUMBER,
    "deadline_at": NUMBER,
    "callback_url": maybe(TEXT),
    "usage": maybe(OPEN),
    "worker": maybe(TEXT),
    "result": {"description": "the engine's answer"},
    "error": {"description": "why there is none"},
    "attempts": record(
        {"count": COUNT, "errors": COUNT, "deaths": COUNT}, optional={"history": many(ANYTHING)}
    ),
    "timings": record({name: maybe(NUMBER) for name in MOMENTS}),
    "redriven_as": maybe(TEXT),
}
WORKER: Schema = {
    **dict.fromkeys(("id", "state", "breaker", "engine", "model", "host"), TEXT),
    **dict.fromkeys(("slots", "busy_slots", "reserved_slots", "prefill_tokens", "pid", "claimed"), COUNT),
    **dict.fromkeys(("busy_share", "started_at"), NUMBER),
    **dict.fromkeys(("kv_used_share", "kv_total_tokens", "prefix_hit_share", "tpot_s"), maybe(NUMBER)),
    **dict.fromkeys(("lately", "minute"), maybe(OPEN)),
    "predicted_s": NUMBER,
    "jobs": {"type": "object", "additionalProperties": COUNT},
    "embedded": FLAG,
}
POOL: Schema = {
    "pool": TEXT,
    "engines": many(TEXT),
    "note": maybe(TEXT),
    "waiting": BY_CLASS,
    "shards": many(record({"queue": TEXT, "waiting": COUNT, "running": COUNT})),
    "workers": many(ref("Worker")),
    "balance_detail": OPEN,  # docs/observing.md
    **dict.fromkeys(("embedded", "paused", "draining"), FLAG),
    **dict.fromkeys(("promoted", "delayed", "running", "dead", "slots", "busy_slots"), COUNT),
    **dict.fromkeys(("mean_run_s", "prefix_hit_share", "balance"), maybe(NUMBER)),
}
FILE: Schema = {
    "id": TEXT,
    "object": kind("file"),
    **dict.fromkeys(("bytes", "created_at", "expires_at"), COUNT),
    **dict.fromkeys(("filename", "purpose", "status"), TEXT),
}
BATCH: Schema = {
    "id": TEXT,
    "object": kind("batch"),
    "errors": maybe(record({"object": kind("list"), "data": many(OPEN)})),
    "status": {"enum": [each.value for each in BatchStatus]},
    **dict.fromkeys(("endpoint", "input_file_id", "completion_window"), TEXT),
    **dict.fromkeys(("output_file_id", "error_file_id"), maybe(TEXT)),
    **{name: maybe(COUNT) for name in TIMES},
    "request_counts": record(dict.fromkeys(("total", "completed", "failed"), COUNT)),
    "metadata": maybe({"type": "object", "additionalProperties": TEXT}),
    "class": CLASS,
}
MODEL: Schema = {
    "id": TEXT,
    "object": kind("model"),
    "created": COUNT,
    "owned_by": TEXT,
    "headway": record(
        {"pool": maybe(TEXT), "note": maybe(TEXT)},
        optional={"route": OPEN, "engine": TEXT, "embedded": FLAG, "workers": COUNT},
    ),
}
USED: Schema = {
    **dict.fromkeys(("requests", "attempts", "prompt_tokens", "output_tokens", "cached_tokens"), COUNT),
    "gpu_seconds": NUMBER,
    "usd": maybe(NUMBER),
}
BILL: Schema = record({"gpu_seconds": NUMBER, "usd": maybe(NUMBER)})
ERROR = record({"error": record({"message": TEXT, "type": TEXT, "code": maybe(TEXT), "param": maybe(TEXT)})})
SCHEMAS: Mapping[str, Schema] = {
    "Error": ERROR,
    "AcceptedJob": record(ACCEPTED, optional=KNOWN | ROUTED | TOLD),
    "Job": record(ACCEPTED | KNOWN, optional=ROUTED | TOLD),
    "JobPage": page("Job", ids=False),
    "Feedback": record(
        {"id": TEXT, "object": kind("feedback"), "rating": {"enum": ["good", "bad"]}, "counted": FLAG}
    ),
    "File": record(FILE),
    "FilePage": page("File", ids=True),
    "DeletedFile": record({"id": TEXT, "object": kind("file"), "deleted": FLAG}),
    "Batch": record(BATCH),
    "BatchPage": page("Batch", ids=True),
    "Worker": record(WORKER),
    "Pool": record(POOL),
    "Fleet": record({"object": kind("fleet"), "pools": many(ref("Pool")), "balance": maybe(NUMBER)}),
    "Overview": OPEN,  # docs/observing.md
    "Model": record(MODEL),
    "ModelList": record({"object": kind("list"), "data": many(ref("Model"))}),
    "Reload": record({"object": kind("reload"), "changed": many(TEXT), "needs_restart": many(TEXT)}),
    "Usage": record(
        {
            "object": kind("usage"),
            "from": TEXT,
            "to": TEXT,
            "data": many(
                record(USED, optional={**dict.fromkeys(("day", "tenant", "model"), TEXT), "class": CLASS})
            ),
            "total": record(USED),
            "instead": record({"actual": BILL, "no_prefix_reuse": BILL, "all_large": maybe(BILL)}),
        }
    ),
    "Alive": record({"status": kind("ok")}),
    "Ready": record({"status": kind("ready")}),
    "NotReady": record({"status": kind("not ready"), "reasons": many(TEXT)}),
}

WHY: Mapping[int, str] = {
    400: "The request is wrong in itself; `param` names what",
    401: "No API key, or one that is not known",
    403: "The API key may not do this; or, without keys, the request comes from another site's page",
    404: "There is no such thing, or it is another tenant's",
    408: "It did not arrive in time",
    409: "At odds with what is there: the idempotency key was used for another request, or it has ended",
    410: "It was cancelled, or its stream is gone",
    413: "Too large",
    415: "Compressed bodies are not taken",
    422: "The engine, or what reads headway.yaml, refuses it",
    431: "Too many or too large headers",
    429: "Too much waits, or a limit is reached; `Retry-After` says when to come again",
    501: "The engine has no such endpoint",
    502: "The engine failed",
    503: "Redis is away, nobody serves the pool, or it takes nothing now; `Retry-After` says when to come again",
    504: "The deadline passed",
}
OUTSIDE = (400, 408, 413, 415, 431)  # by the connection, and by the gate's look at the body
ANYWHERE = (*OUTSIDE, 401, 403, 503)  # by the gate; 503 also without Redis
OF_INFERENCE = (404, 409, 410, 422, 429, 501, 502, 504)
OF_STEERING = (404,)
# (status of success, schema or media types of its body, errors beyond those of ANYWHERE)
OPERATIONS: Mapping[str, tuple[int, str, tuple[int, ...]]] = {
    "post /v1/jobs": (202, "AcceptedJob", (404, 409, 429)),
    "get /v1/jobs": (200, "JobPage", (404,)),
    "get /v1/jobs/{job_id}": (200, "Job", (404,)),
    "delete /v1/jobs/{job_id}": (200, "Job", (404,)),
    "post /v1/jobs/{job_id}/feedback": (200, "Feedback", (404, 409)),
    "post /v1/jobs/{job_id}/redrive": (202, "Job", (404, 409, 429)),
    "get /v1/jobs/{job_id}/events": (200, SENT_EVENTS, (404,)),
    "post /v1/files": (200, "File", (409,)),
    "get /v1/files": (200, "FilePage", ()),
    "get /v1/files/{file_id}": (200, "File", (404,)),
    "delete /v1/files/{file_id}": (200, "DeletedFile", (404,)),
    "get /v1/files/{file_id}/content": (200, "application/octet-stream", (404,)),
    "post /v1/batches": (200, "Batch", (404, 409)),
    "get /v1/batches": (200, "BatchPage", ()),
    "get /v1/batches/{batch_id}": (200, "Batch", (404,)),
    "post /v1/batches/{batch_id}/cancel": (200, "Batch", (404, 409)),
    "get /healthz": (200, "Alive", ()),
    "get /readyz": (200, "Ready", ()),
    "get /metrics": (200, "text/plain", ()),
    "get /v1/fleet": (200, "Fleet", ()),
    "get /v1/overview": (200, "Overview", ()),
    "get /v1/usage": (200, "Usage text/csv", ()),
    "get /v1/models": (200, "ModelList", ()),
    "get /v1/models/{model}": (200, "Model", (404,)),
    "post /v1/fleet/{pool}/pause": (200, "Pool", OF_STEERING),
    "post /v1/fleet/{pool}/drain": (200, "Pool", OF_STEERING),
    "post /v1/fleet/{pool}/resume": (200, "Pool", OF_STEERING),
    "post /v1/fleet/{pool}/workers/{worker_id}/pause": (200, "Pool", OF_STEERING),
    "post /v1/fleet/{pool}/workers/{worker_id}/drain": (200, "Pool", OF_STEERING),
    "post /v1/fleet/{pool}/workers/{worker_id}/resume": (200, "Pool", OF_STEERING),
    "post /admin/reload": (200, "Reload", (422,)),
}


def answer(description: str, *, media: str = "application/json", schema: Schema | None = None) -> Schema:
    return {"description": description, "content": {media: {"schema": schema or {}}}}


def success(body: str) -> Schema:
    """`body`: a name of SCHEMAS, or a media type; two of them after a space."""
    found = answer("Success")
    found["content"] = {}
    for each in body.split(" "):
        if each in SCHEMAS:
            found["content"]["application/json"] = {"schema": ref(each)}
        else:
            found["content"][each] = {"schema": JOB_EVENTS if each == SENT_EVENTS else TEXT}
    return found


def refusals(statuses: tuple[int, ...]) -> Schema:
    return {str(status): answer(WHY[status], schema=ref("Error")) for status in sorted(set(statuses))}


def responses(operation: str, *, is_open: bool) -> Schema:
    """Of an operation by method and path. `is_open`: it needs no key. Raises KeyError for one that nobody has described."""
    status, body, errors = OPERATIONS[operation]
    found = {str(status): success(body), **refusals((*errors, *(OUTSIDE if is_open else ANYWHERE)))}
    if operation == "get /readyz":
        found["503"] = answer("Redis does not answer, or a pool has no ready worker", schema=ref("NotReady"))
    return found
