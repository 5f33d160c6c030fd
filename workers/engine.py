"""What a worker asks of an engine, whichever it is. Implemented in `workers/engines/`, called by the pull worker.

Invariant: an engine's bytes pass through unread. Headway looks into an answer only for its token counts and errors.

EngineError
├── EngineUnavailable    not reached: connection refused, not started, or it refuses the worker's key
├── EngineFailed         reached, and it answered this request with a 5xx
├── EngineBusy           it has no room; not a failure of the engine
├── EngineRejected       the request is at fault; no attempt will do better
├── EngineTimeout        a time limit passed
├── EngineBroken         it died or sent garbage after it had begun to answer
└── EngineAborted        `abort` was called for this job
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from broker.errors import EngineError
from broker.tenants import DEFAULT

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"


class EngineUnavailable(EngineError):
    """Not reached, or not willing to talk to this worker at all: it gets no more jobs until it is healthy."""

    retryable: ClassVar[bool] = True


class EngineFailed(EngineError):
    """A 5xx answer to one request. The engine is there, and others may fare better: one request must not take it out."""

    retryable: ClassVar[bool] = True


class EngineBusy(EngineError):
    """The engine sheds load (429, 503). Give the job back; `retry_after_s` is the engine's wish, or 1."""

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineRejected(EngineError):
    """The caller's fault. `body` is the engine's answer; it may quote the prompt, so it is not in the message."""

    retryable: ClassVar[bool] = False

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the engine refused the request with status {status}")
        self.status = status
        self.body = body


class EngineTimeout(EngineError):
    """No connection, no first byte, no next byte or no whole answer in time; the message says which."""

    retryable: ClassVar[bool] = True


class EngineBroken(EngineError):
    """The answer began and cannot be finished."""

    retryable: ClassVar[bool] = True


class EngineAborted(EngineError):
    """The answer was called off by `Engine.abort`; whoever called it off decides what becomes of the job."""

    retryable: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class EngineCall:
    """`body` is the caller's JSON object; the engine adapter copies it before it changes anything.

    `rank`: of the job's class, 0 for P0, for engines that order by it. `tenant`: cached prefixes are kept apart by it.
    """

    job_id: str
    endpoint: str  # CHAT, COMPLETIONS or EMBEDDINGS
    body: dict[str, Any]
    stream: bool
    rank: int = 0
    tenant: str = DEFAULT
    trace: str = ""  # what it is part of, for engines that trace: tracing.carried


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the engine counted them. `cached_tokens` is the part of the prompt it did not compute.

    `recounted`: the engine gave no count, or one that cannot be; this is Headway's estimate.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    recounted: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """`count` stream payloads (JSON without `data: `, never `[DONE]`), joined by newlines, as the engine wrote them."""

    data: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Final:
    """The last item. `body` is the whole answer, or empty after a stream."""

    body: bytes
    usage: Usage | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine says of itself now; None: it does not say. Several engines behind one address are one.

    `kv_used_share` is in 0..1; the cache is given out in pages of `kv_page_tokens`. Prefix tokens and preemptions are totals since the engine began: `prefix_hit_tokens` of
    `prefix_query_tokens` prompt tokens were found in its cache.
    """

    running: int | None = None
    waiting: int | None = None
    kv_used_share: float | None = None
    kv_total_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    prefix_query_tokens: int | None = None
    preemptions: int | None = None
    kv_page_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`slots` requests fit at once, each of at most `context_tokens` (prompt and answer), all together of `kv_tokens`, in
    pages of `kv_page_tokens`.

    None: unknown. `slots_known` False: nobody said so, and it is what such engines usually have.
    """

    slots: int
    context_tokens: int | None
    model: str | None
    kv_tokens: int | None = None
    kv_page_tokens: int | None = None
    slots_known: bool = field(default=True, compare=False)


class Engine(Protocol):
    """One replica. All methods run on one event loop."""

    name: str
    pid: int | None  # of a process on this machine that holds the model

    async def start(self) -> None:
        """Raises EngineUnavailable with what to do. May be called again after it failed."""

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        """Deltas (streams only), then one Final. Closing or cancelling it aborts the request in the engine."""

    async def abort(self, job_id: str) -> None:
        """Makes the job's running `generate` raise EngineAborted. An unknown job is no error."""

    async def load(self) -> EngineLoad:
        """Raises EngineUnavailable if it cannot be asked."""

    async def health(self) -> bool:
        """Never raises."""

    async def limits(self) -> EngineLimits:
        """Asks the engine anew. Raises EngineUnavailable."""

    async def close(self) -> None:
        """Ends running requests. May be called twice."""
