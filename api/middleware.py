"""The gate that every request passes: API key, size of the body, number of requests at a time. Plain ASGI.

Starlette's BaseHTTPMiddleware would hide disconnects and break streams, so this only looks at the headers and counts
the body's bytes on their way.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError
from api.keyring import Keyring
from broker.settings import Settings
from broker.tenants import Tenant

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/favicon.ico"})
TENANT = "headway.tenant"  # in the scope of every request that came in
FILES = "/v1/files"  # counts its bytes itself, while it writes them to disk
BEARER = b"bearer "


class Gate:
    """Refuses before anything is read or parsed."""

    def __init__(self, app: ASGIApp, settings: Settings, *, keyring: Keyring) -> None:
        self.app = app
        self._keyring = keyring
        self._max_bytes = settings.max_body_bytes
        self._max_requests = settings.max_connections
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            limited = self._admit(scope)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        self._requests += 1
        try:
            await self.app(scope, self._counted(receive) if limited else receive, send)
        finally:
            self._requests -= 1

    def _admit(self, scope: Scope) -> bool:
        """Whether the body still has to be counted. Raises ApiError."""
        length, authorization = b"", b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = value
            elif name == b"authorization":
                authorization = value
        scope[TENANT] = self._keyring.anybody
        path: str = scope["path"]
        if path not in OPEN_PATHS:
            if self._requests >= self._max_requests:
                raise ApiError(503, "too many requests at a time here", code="overloaded").retry_after(1)
            if not self._keyring.is_open:
                scope[TENANT] = self._tenant(authorization)
        if path == FILES:
            return False
        if length.isdigit() and int(length) > self._max_bytes:
            raise too_large(self._max_bytes)
        return not length and scope["method"] not in ("GET", "HEAD", "DELETE")

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

    def _counted(self, receive: Receive) -> Receive:
        """For a body of unknown length (chunked): stops reading it once it is too large."""
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                raise too_large(self._max_bytes)
            return message

        return counting


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the request is larger than {max_bytes} bytes", code="request_too_large")
