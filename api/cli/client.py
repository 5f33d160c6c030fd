"""The HTTP client of `headway job` and `headway chat`: finds the running Headway, turns its errors into messages."""

from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx
import orjson

from broker.client_settings import ClientSettings
from broker.errors import BrokerError

ANSWER_S = 60.0
UNAUTHORIZED = 401


class RequestRefused(BrokerError):
    """Headway answered, and said no."""


class Unavailable(RequestRefused):
    """Not now: overload, or a part that is being started again."""

    retryable = True


class NoAnswer(BrokerError):
    """Nobody listens there, or the connection broke."""

    retryable = True


def segment(identifier: str) -> str:
    """One segment of a path, whatever was typed. Raises RequestRefused for nothing."""
    if not identifier:
        raise RequestRefused("an id is needed")
    return quote(identifier, safe="")


class Client:
    """One connection pool to one Headway. Use as a context manager."""

    def __init__(self, settings: ClientSettings) -> None:
        self.url = settings.find_url()
        headers = (
            {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}
        )
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=ANSWER_S)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """The JSON answer. `options` are httpx's (`json`, `params`, `timeout`). Raises RequestRefused, NoAnswer."""
        content = self._ask(method, path, **options)
        return orjson.loads(content) if content else None

    def text(self, path: str, **options: Any) -> str:
        """An answer that is no JSON. Raises RequestRefused, NoAnswer."""
        return self._ask("GET", path, **options).decode()

    def _ask(self, method: str, path: str, **options: Any) -> bytes:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._no_answer(error) from None
        if answer.is_error:
            raise refused(answer.status_code, answer.content)
        return answer.content

    def stream(self, path: str, body: dict[str, Any], **options: Any) -> Iterator[dict[str, Any]]:
        """The JSON documents of a server-sent event stream, `[DONE]` left out. Raises RequestRefused, NoAnswer."""
        timeout = httpx.Timeout(ANSWER_S, read=None)
        try:
            with self._http.stream("POST", path, json=body, timeout=timeout, **options) as answer:
                if answer.is_error:
                    raise refused(answer.status_code, answer.read())
                yield from documents(answer)
        except httpx.TransportError as error:
            raise self._no_answer(error) from None

    def download(self, path: str, target: BinaryIO) -> None:
        """Writes the answer's bytes as they come. Raises RequestRefused, NoAnswer."""
        try:
            with self._http.stream("GET", path) as answer:
                if answer.is_error:
                    raise refused(answer.status_code, answer.read())
                target.writelines(answer.iter_bytes())
        except httpx.TransportError as error:
            raise self._no_answer(error) from None

    def first_model(self) -> str:
        """What to ask for when the user named none."""
        return str(self.call("GET", "/v1/models")["data"][0]["id"])

    def _no_answer(self, error: Exception) -> NoAnswer:
        why = str(error) or type(error).__name__
        return NoAnswer(f"no answer from {self.url} ({why}); is `headway up` running, is HEADWAY_URL right?")


def documents(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Raises RequestRefused for an error after the first byte, which comes as an event."""
    for line in answer.iter_lines():
        if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
            continue
        document: dict[str, Any] = orjson.loads(data)
        if "error" in document:
            raise refused(answer.status_code, data.encode())
        yield document


def printable(text: str) -> str:
    """Without what steers a terminal: some of it is an engine's, or another caller's."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def refused(status: int, content: bytes) -> RequestRefused:
    """From OpenAI's error shape, or from whatever a proxy in between has said."""
    kind = Unavailable if status in (429, 502, 503, 504) else RequestRefused
    try:
        error = orjson.loads(content)["error"]
        where = f" [{error['param']}]" if error.get("param") else ""
        key = "; HEADWAY_API_KEY has to hold one of this Headway's keys" if status == UNAUTHORIZED else ""
        return kind(
            printable(f"{error['message']}{where} ({error.get('code') or error.get('type') or status}){key}")
        )
    except (ValueError, KeyError, TypeError):
        return kind(printable(f"HTTP {status}: {content[:200].decode('utf-8', errors='replace')}"))
