"""The gate that every request passes: API key, size of the body, number of requests at a time. Plain ASGI.

Starlette's BaseHTTPMiddleware would hide disconnects and break streams, so this only looks at the headers and counts
the body's bytes on their way.
"""

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import REFUSAL, ApiError
from api.keyring import Keyring
from broker.settings import Settings
from broker.tenants import Tenant

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/favicon.ico"})
TENANT = "headway.tenant"  # in the scope of every request that came in
FILES = "/v1/files"  # counts its bytes itself, while it writes them to disk
BEARER = b"bearer "
SMALL_BYTES = 64 * 1024  # bodies of that size are not counted
MOST_BODIES = 64  # of the largest size, at a time: 1 GiB by default


class Gate:
    """Refuses before anything is read or parsed."""

    def __init__(self, app: ASGIApp, settings: Settings, *, keyring: Keyring) -> None:
        self.app = app
        self._keyring = keyring
        self._room = Room(settings.max_body_bytes)
        self._max_requests = settings.max_connections
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            counted = self._admit(scope)
        except ApiError as error:
            scope[REFUSAL] = error
            await error.response()(scope, receive, send)
            return
        self._requests += 1
        body = Body(receive, self._room) if counted else None
        try:
            await self.app(scope, body or receive, send)
        finally:
            self._requests -= 1
            if body is not None:
                self._room.held -= body.read

    def _admit(self, scope: Scope) -> bool:
        """Whether the body's bytes have to be counted. Raises ApiError."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        scope[TENANT] = self._keyring.anybody
        path: str = scope["path"]
        if path not in OPEN_PATHS:
            if self._requests >= self._max_requests:
                raise ApiError(503, "too many requests at a time here", code="overloaded").retry_after(1)
            if self._keyring.is_open:
                check_origin(headers)
            else:
                scope[TENANT] = self._tenant(headers.get(b"authorization", b""))
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise compressed()
        if path == FILES or scope["method"] in ("GET", "HEAD", "DELETE"):
            return False
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._room.max_bytes:
            raise too_large(self._room.max_bytes)
        return not length or int(length) > SMALL_BYTES

    def _tenant(self, authorization: bytes) -> Tenant:
        """Whose key it is. Raises ApiError."""
        given = (
            authorization[len(BEARER) :].strip() if authorization[: len(BEARER)].lower() == BEARER else b""
        )
        if not given:
            error = ApiError(
                401, "an API key is needed: send `Authorization: Bearer <key>`", code="missing_api_key"
            )
        elif (tenant := self._keyring.find(given)) is not None:
            return tenant
        else:
            error = ApiError(401, "this API key is not known here", code="invalid_api_key")
        error.headers["www-authenticate"] = "Bearer"
        raise error


class Room:
    """For the bodies that are in memory at a time. `max_bytes`: of one."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0  # bytes of requests that are under way


class Body:
    """Where a request's body is read from; stops once it is too large, or there is too much of them all."""

    __slots__ = ("_receive", "_room", "read")

    def __init__(self, receive: Receive, room: Room) -> None:
        self._receive = receive
        self._room = room
        self.read = 0

    async def __call__(self) -> Message:
        """Raises ApiError."""
        message = await self._receive()
        size = len(message.get("body", b""))
        self.read += size
        self._room.held += size
        if self.read > self._room.max_bytes:
            raise too_large(self._room.max_bytes)
        if size and self._room.held > MOST_BODIES * self._room.max_bytes:
            raise ApiError(503, "too many large requests at a time here", code="overloaded").retry_after(1)
        return message


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Without keys any web page that its user looks at could post jobs here, or pause a pool. Raises ApiError."""
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
        message = (
            "requests of other sites' pages are not taken; without API keys there is nothing to tell them by"
        )
        raise ApiError(403, message, code="cross_origin")


def compressed() -> ApiError:
    """A few KiB may unfold to gigabytes, so nothing is unfolded here."""
    message = "send the body as it is; compressed ones (Content-Encoding) are not taken"
    error = ApiError(415, message, code="unsupported_encoding", param="Content-Encoding")
    error.headers["accept-encoding"] = "identity"
    return error


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the request is larger than {max_bytes} bytes", code="request_too_large")
