"""OpenAPI for what FastAPI does not see: bodies that are read raw, and the plain ASGI endpoints. Answers: `answers.py`."""

from collections.abc import Mapping

from fastapi import FastAPI

from api import answers
from api.answers import Schema
from api.middleware import OPEN_PATHS
from api.submit import MAX_DEADLINE_S
from broker import request_checks
from broker.job import MAX_PRIORITY
from broker.tenants import FALLBACKS

COMMON: Schema = {
    "model": {
        "type": "string",
        "minLength": 1,
        "examples": ["small"],
        "description": "a pool or one of its aliases; see /v1/models",
    },
    "stream": {"type": "boolean"},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": request_checks.MAX_TOKENS},
    "temperature": {"type": "number"},
    "n": {"type": "integer", "minimum": 1, "maximum": request_checks.MAX_CHOICES},
    "priority": {
        "type": "integer",
        "minimum": -MAX_PRIORITY,
        "maximum": MAX_PRIORITY,
        "description": "orders inside the class, lower first",
    },
    "service_tier": {"enum": ["auto", "default", "priority", "flex"]},
}
TEXTS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array"}]},
}
DEADLINE: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_S, "examples": [60]}
SUBJECTS: Mapping[str, Schema] = {
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object"},
        "examples": [[{"role": "user", "content": "Hi"}]],
    },
    "prompt": {"anyOf": [{"type": "string"}, TEXTS]},
    "input": {"anyOf": [{"type": "string", "minLength": 1}, TEXTS]},
}
HEADERS: list[Schema] = [
    {
        "name": "X-Headway-Class",
        "in": "header",
        "schema": {"enum": ["P0", "P1", "P2", "P3"]},
        "description": "service class; goes before service_tier",
    },
    {
        "name": "X-Headway-Deadline",
        "in": "header",
        "schema": DEADLINE,
        "description": "seconds; then 504",
    },
    {
        "name": "X-Headway-Fallback",
        "in": "header",
        "schema": {"enum": list(FALLBACKS)},
        "description": "while nobody serves the pool; docs/staying_up.md",
    },
]
RETRY: Schema = {
    "name": "X-Headway-Retry",
    "in": "header",
    "schema": {"enum": ["reset"]},
    "description": "a stream that breaks off may begin anew",
}
EVENT_ID: Schema = {"type": "string", "pattern": "^([0-9]{1,19}-[0-9]{1,19})?$"}
METADATA: Schema = {
    "type": "object",
    "propertyNames": {"maxLength": 64},
    "additionalProperties": {"type": "string", "maxLength": 512},
    "maxProperties": 16,
}


def json_body(properties: Schema, required: list[str], *, more: Schema | None = None) -> Schema:
    schema = {"type": "object", "properties": properties, "required": required, **(more or {})}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


IDEMPOTENCY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "pattern": "^[ -~]{1,255}$"},
    "description": "equal keys with equal requests are one job, whose answer a repeat gets; with another request: 409",
}
FEEDBACK_BODY: Schema = {
    "requestBody": json_body(
        {"rating": {"enum": ["good", "bad"]}}, ["rating"], more={"additionalProperties": False}
    )
}
JOB_BODY: Schema = {
    "parameters": [*HEADERS, IDEMPOTENCY],
    "requestBody": json_body(
        {
            **COMMON,
            **SUBJECTS,
            "stream": {
                "type": "boolean",
                "default": True,
                "description": "whether /v1/jobs/{id}/events shows chunks as they come; the result is whole either way",
            },
            "class": {"enum": ["P0", "P1", "P2", "P3"], "default": "P2"},
            "deadline_s": DEADLINE | {"default": 86_400},
            "metadata": METADATA,
            "callback_url": {
                "type": "string",
                "format": "uri",
                "description": "is told when the job has ended",
            },
        },
        ["model"],
        more={"oneOf": [{"required": [subject]} for subject in SUBJECTS]},
    ),
}


BATCH_CLASS = HEADERS[0] | {"schema": {"enum": ["P2", "P3"]}}
BATCH_BODY: Schema = {
    "parameters": [BATCH_CLASS, IDEMPOTENCY],
    "requestBody": json_body(
        {
            "input_file_id": {"type": "string", "description": "of a file with the purpose `batch`"},
            "endpoint": {"enum": list(request_checks.SUBJECTS)},
            "completion_window": {
                "type": "string",
                "pattern": "^[1-9][0-9]{0,5}[smhd]$",
                "description": "at most 30d",
            },
            "metadata": METADATA,
        },
        ["input_file_id", "endpoint", "completion_window"],
    ),
}
FORM: Schema = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "pattern": "^[a-z][a-z_-]{0,31}$"},
    },
    "required": ["file", "purpose"],
}
FILE_BODY: Schema = {
    "parameters": [IDEMPOTENCY],
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}},
}


def _inference(endpoint: str, subject: str) -> Schema:
    ok = answers.answer("The engine's answer", schema={"type": "object"})
    if endpoint != request_checks.EMBEDDINGS:
        ok["content"][answers.SENT_EVENTS] = {"schema": answers.events()}
    return {
        "tags": ["openai"],
        "summary": f"OpenAI's {endpoint.removeprefix('/v1/')}; fields not listed go to the engine as they are",
        "parameters": [*HEADERS, RETRY, IDEMPOTENCY],
        "requestBody": json_body(COMMON | {subject: SUBJECTS[subject]}, ["model", subject]),
        "responses": {"200": ok, **answers.refusals((*answers.OF_INFERENCE, *answers.ANYWHERE))},
    }


EVENTS: Schema = {
    "tags": ["jobs"],
    "summary": "The job as it happens: status, chunk, reset, gap, done",
    "parameters": [
        {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "Last-Event-ID", "in": "header", "schema": EVENT_ID},
        {"name": "after", "in": "query", "schema": EVENT_ID},
    ],
}


def install(app: FastAPI) -> None:
    """Makes /openapi.json, which is built once, when it is first asked for."""
    build = app.openapi

    def openapi() -> Schema:
        if app.openapi_schema is None:
            _complete(build())
        return build()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: Schema) -> None:
    """FastAPI knows the routes and their queries. What they read raw, what they answer and who may ask comes from here."""
    paths = document["paths"]
    paths["/v1/jobs/{job_id}/events"] = {"get": EVENTS}
    for path, operations in paths.items():
        for method, operation in operations.items():
            if (name := f"{method} {path}") in answers.OPERATIONS:
                operation["responses"] = answers.responses(name, is_open=path in OPEN_PATHS)
    paths |= {
        endpoint: {"post": _inference(endpoint, subject)}
        for endpoint, subject in request_checks.SUBJECTS.items()
    }
    for operation in (
        operations[m] for path, operations in paths.items() if path not in OPEN_PATHS for m in operations
    ):
        operation["security"] = [{"key": []}, {}]
    keys = {"key": {"type": "http", "scheme": "bearer", "description": "needed once there is any key"}}
    document["components"] = {"schemas": dict(answers.SCHEMAS), "securitySchemes": keys}
