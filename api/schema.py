"""OpenAPI for what FastAPI does not see: bodies that are read raw, and the plain ASGI endpoints."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from broker import request_checks

Schema = dict[str, Any]

ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": ["string", "null"]},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}
COMMON: Schema = {
    "model": {"type": "string", "description": "a pool or one of its aliases; see /v1/models"},
    "stream": {"type": "boolean"},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": request_checks.MAX_TOKENS},
    "temperature": {"type": "number"},
    "n": {"type": "integer", "minimum": 1, "maximum": request_checks.MAX_CHOICES},
    "priority": {"type": "integer", "description": "orders inside the class, lower first"},
    "service_tier": {"enum": ["auto", "default", "priority", "flex"]},
}
TEXT: Schema = {"oneOf": [{"type": "string"}, {"type": "array"}]}
SUBJECTS: Mapping[str, Schema] = {
    "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    "prompt": TEXT,
    "input": TEXT,
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
        "schema": {"type": "number", "exclusiveMinimum": 0},
        "description": "seconds; then 504",
    },
]


def json_body(properties: Schema, required: list[str]) -> Schema:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": True}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def answer(description: str, *, media: str = "application/json", schema: Schema | None = None) -> Schema:
    return {"description": description, "content": {media: {"schema": schema or {}}}}


IDEMPOTENCY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "equal keys with equal requests are one job, whose answer a repeat gets; with another request: 409",
}
FEEDBACK_BODY: Schema = {"requestBody": json_body({"rating": {"enum": ["good", "bad"]}}, required=["rating"])}
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
            "deadline_s": {"type": "number", "exclusiveMinimum": 0, "default": 86_400},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 16},
            "callback_url": {
                "type": "string",
                "format": "uri",
                "description": "is told when the job has ended",
            },
        },
        ["model"],
    ),
}


def _inference(endpoint: str, subject: str) -> Schema:
    streams = endpoint != request_checks.EMBEDDINGS
    properties = COMMON | {subject: SUBJECTS[subject]}
    ok = answer("The engine's answer")
    if streams:
        ok["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "post": {
            "tags": ["openai"],
            "summary": f"OpenAI's {endpoint.removeprefix('/v1/')}; fields not listed go to the engine as they are",
            "parameters": [*HEADERS, IDEMPOTENCY],
            "requestBody": json_body(properties, ["model", subject]),
            "responses": {"200": ok, "default": answer("An error", schema=ERROR)},
        }
    }


EVENTS: Schema = {
    "get": {
        "tags": ["jobs"],
        "summary": "The job as it happens: status, chunk, reset, gap, done",
        "parameters": [
            {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
            {"name": "after", "in": "query", "schema": {"type": "string"}},
        ],
        "responses": {
            "200": answer("Events", media="text/event-stream", schema={"type": "string"}),
            "default": answer("An error", schema=ERROR),
        },
    }
}


def install(app: FastAPI) -> None:
    """Adds the plain endpoints to /openapi.json, which FastAPI builds once, when it is first asked for."""
    build = app.openapi

    def openapi() -> Schema:
        if app.openapi_schema is None:
            paths = build()["paths"]
            paths |= {
                endpoint: _inference(endpoint, subject)
                for endpoint, subject in request_checks.SUBJECTS.items()
            }
            paths["/v1/jobs/{job_id}/events"] = EVENTS
            for operation in (each for path in paths.values() for each in path.values()):
                if operation["responses"].pop("422", None) is not None:  # what FastAPI would answer by itself
                    operation["responses"]["400"] = answer("Bad input", schema=ERROR)
        return build()

    app.openapi = openapi  # type: ignore[method-assign]
