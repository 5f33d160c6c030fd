"""From errors to HTTP: the only place that knows which status and which OpenAI-shaped body an error becomes.

Handlers raise; `install` registers the rest. After the first byte of a stream `event` says the same inside it.
"""

import math
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.rendering import Json
from broker.errors import (
    BatchEnded,
    BrokerError,
    EngineError,
    InvalidJob,
    MemoryFull,
    QueueFull,
    RedisAway,
    RedisUnsuitable,
    StreamLost,
    UnknownBatch,
    UnknownFile,
    UnknownJob,
    UnknownPool,
    UnknownWorker,
)
from broker.job import Status
from broker.stream import Message

CLIENT_FAULT = "invalid_request_error"
SERVER_FAULT = "server_error"
# An engine's verdict on the request itself. Anything else it answers (its own key, its own overload) is not the caller's
# business and becomes 502.
ENGINE_VERDICTS = frozenset({400, 404, 413, 422, 501})


REFUSAL = "headway.refusal"  # in the scope of a request that an ApiError has answered


class ApiError(BrokerError):
    """An error with its HTTP status. `code` and `param` as in OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.kind = CLIENT_FAULT if status < 500 else SERVER_FAULT
        self.headers: dict[str, str] = {}

    def retry_after(self, seconds: float) -> "ApiError":
        """Adds the header; whole seconds, at least 1."""
        self.headers["retry-after"] = str(max(1, math.ceil(seconds)))
        return self

    def document(self) -> dict[str, Any]:
        return {"message": str(self), "type": self.kind, "code": self.code, "param": self.param}

    def body(self) -> dict[str, Any]:
        return {"error": self.document()}

    def response(self) -> Json:
        return Json(self.body(), status_code=self.status, headers=self.headers)


class ClientGone(BrokerError):
    """The client hung up: nobody is left to answer."""


def invalid(message: str, *, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400 for a request that is wrong in itself."""
    return ApiError(400, message, code=code, param=param)


def forbidden(message: str, *, param: str | None = None) -> ApiError:
    """403: the key is known, but not for this."""
    return ApiError(403, message, code="insufficient_scope", param=param)


def deadline_passed(deadline_s: float) -> ApiError:
    return ApiError(504, f"no answer within the deadline of {deadline_s:g} s", code="deadline_exceeded")


def cancelled(job_id: str) -> ApiError:
    return ApiError(410, f"{job_id} was cancelled", code="job_cancelled")


def no_worker(pool: str) -> ApiError:
    message = f"no worker serves the pool {pool!r} now; start one (headway worker --pool {pool} --engine ...) or retry"
    return ApiError(503, message, code="no_worker").retry_after(5)


def shutting_down() -> ApiError:
    message = "this API process is stopping; ask again, and go on after the last event's id"
    return ApiError(503, message, code="shutting_down").retry_after(1)


def too_late(begin_s: float, deadline_s: float, *, service_class: str) -> ApiError:
    """Behind what waits already it would not begin in time: said at once, not by a 504 later."""
    message = f"a {service_class} job would begin in about {begin_s:.0f} s now, behind its deadline of {deadline_s:g} s"
    error = ApiError(429, message, code="deadline_unreachable")
    error.kind = "rate_limit_error"
    return error


def pool_draining(pool: str) -> ApiError:
    message = f"the pool {pool!r} is being drained and takes no new requests (POST /v1/fleet/{pool}/resume ends that)"
    return ApiError(503, message, code="pool_draining").retry_after(30)


STATUSES: tuple[tuple[type[BrokerError], int, str], ...] = (
    (UnknownJob, 404, "job_not_found"),
    (UnknownPool, 404, "model_not_found"),
    (UnknownWorker, 404, "worker_not_found"),
    (UnknownFile, 404, "file_not_found"),
    (UnknownBatch, 404, "batch_not_found"),
    (BatchEnded, 409, "batch_ended"),
    (MemoryFull, 503, "memory_full"),
    (QueueFull, 429, "queue_full"),
    (RedisAway, 503, "queue_unavailable"),
    (RedisUnsuitable, 503, "queue_unavailable"),
    (StreamLost, 410, "stream_lost"),
    (EngineError, 502, "engine_error"),
)


def translate(error: BrokerError) -> ApiError:
    """What a caller is told about an error of the broker."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidJob):
        return invalid(str(error), param=error.param, code=error.code)
    found = next(((status, code) for kind, status, code in STATUSES if isinstance(error, kind)), None)
    status, code = found or (500, "internal_error")
    translated = ApiError(status, str(error), code=code)
    if isinstance(error, QueueFull):
        translated.kind = "rate_limit_error" if status == 429 else SERVER_FAULT
        return translated.retry_after(error.retry_after_s)
    return translated.retry_after(1) if status == 503 else translated


def ending(message: Message, *, job_id: str, deadline_s: float) -> ApiError | None:
    """What a caller, who knows the job as `job_id`, is told if it ended without an answer; None if it succeeded."""
    match message.status:
        case Status.SUCCEEDED:
            return None
        case Status.EXPIRED:
            return deadline_passed(deadline_s)
        case Status.CANCELLED:
            return cancelled(job_id)
        case _:
            return _engine_error(message.data)


def _engine_error(data: bytes) -> ApiError:
    """`data`: the error document that a worker or the reaper left."""
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    status = said.get("status")
    message = str(said.get("message") or "the engine failed without a word")
    code, param = said.get("code"), said.get("param")
    error = ApiError(status if status in ENGINE_VERDICTS else 502, message, code=code, param=param)
    if error.status != 502 and said.get("type"):
        error.kind = str(said["type"])
    return error


def event(error: BrokerError) -> bytes:
    """The error as an event of a stream that has begun. OpenAI's clients raise it: openai-python, `_streaming.py`."""
    return b"data: " + orjson.dumps(translate(error).body()) + b"\n\n"


async def on_broker_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientGone):
        return Response(status_code=499)  # goes nowhere
    assert isinstance(error, BrokerError)
    refusal = request.scope[REFUSAL] = translate(error)
    return refusal.response()


async def on_http_error(request: Request, error: Exception) -> Json:
    """Routing's own 404 and 405, and what FastAPI raises about a body that it cannot read."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"there is nothing at {request.method} {request.url.path}; see /openapi.json"
        return ApiError(404, message, code="not_found").response()
    response = ApiError(error.status_code, str(error.detail), code=None).response()
    response.headers.update(error.headers or {})
    return response


async def on_invalid_request(_: Request, error: Exception) -> Json:
    """FastAPI's validation of paths, queries and forms."""
    assert isinstance(error, RequestValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    param = str(first["loc"][-1]) if first.get("loc") else None
    return invalid(f"{param}: {first['msg']}", param=param).response()


async def on_fault(_: Request, __: Exception) -> Json:
    """A fault of ours. The server's log has the traceback; the caller gets no internals."""
    return ApiError(
        500, "Headway failed on this request; its log has the details", code="internal_error"
    ).response()


def install(app: FastAPI) -> None:
    app.add_exception_handler(BrokerError, on_broker_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(Exception, on_fault)
