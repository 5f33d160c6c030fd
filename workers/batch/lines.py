"""The lines of a batch's files, without I/O: cutting bytes into lines, checking a request, writing an answer.

Formats: OpenAI's batch API (input, output and error file). Whatever is wrong with a line becomes a line of the error
file; it never stops the others.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from broker import request_checks
from broker.config import Config
from broker.errors import InvalidJob
from broker.job import derived_job_id
from broker.shards import Shards
from workers.batch.aim import Aim, aim

MAX_LINE_BYTES = 4 << 20
MAX_CUSTOM_ID = 512
BOM = b"\xef\xbb\xbf"
# Answers are stored whole; the batch has a class of its own
NOT_FOR_ENGINES = ("stream", "stream_options", "priority", "service_tier")
UNSPLIT = Shards({})
GONE_STATUS = 502  # of a failed job whose error names no HTTP status


@dataclass(frozen=True, slots=True)
class Line:
    """`number`: in the file, from 1, blank ones counted. `start`, `end`: bytes. `data` is None if it is too long."""

    number: int
    start: int
    end: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Request:
    """A line that can be asked. `body`: for the engine; `document` is the same, parsed."""

    custom_id: str
    aim: Aim
    document: dict[str, Any]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a line cannot be asked, or got no answer."""

    code: str
    message: str
    custom_id: str | None = None


async def split_lines(
    chunks: AsyncIterator[bytes], *, start: int = 0, number: int = 1
) -> AsyncIterator[Line]:
    """Lines that are not blank. Holds one chunk and one line; of a line that is too long no more than the limit.

    `start`, `number`: of the first byte and line in `chunks`.
    """
    held, dropped = b"", 0  # the beginning of a line: kept bytes, and how many more were not kept
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        for piece in others:
            line = _line(number, start, held=(held + first, dropped))
            start, number = line.end + 1, number + 1
            held, dropped, first = b"", 0, piece
            if line.data is None or line.data.strip():
                yield line
        room = max(0, MAX_LINE_BYTES + 1 - len(held))
        held, dropped = held + first[:room], dropped + len(first[room:])
    line = _line(number, start, held=(held, dropped))
    if line.data is None or line.data.strip():
        yield line


def _line(number: int, start: int, *, held: tuple[bytes, int]) -> Line:
    data, dropped = held
    end = start + len(data) + dropped
    too_long = end - start > MAX_LINE_BYTES
    return Line(number, start, end, None if too_long else data.removeprefix(BOM if start == 0 else b""))


def custom_id_of(line: Line) -> str | None:
    """The line's custom_id if it has a usable one."""
    if line.data is None:
        return None
    try:
        document = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        return None
    custom_id = document.get("custom_id") if isinstance(document, dict) else None
    return custom_id if isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID else None


@dataclass(frozen=True, slots=True)
class LineRules:
    """What the lines of one batch must be like."""

    endpoint: str
    config: Config
    pools: frozenset[str] = frozenset()  # those that workers have announced, beyond the configuration
    only: frozenset[str] = frozenset()  # that the key may use with which the batch was made; none: all
    floors: Mapping[str, float] = field(default_factory=dict)  # that feedback has taught

    def check(self, line: Line, *, repeated: bool) -> Request | Flaw:
        """`repeated`: an earlier line has the same custom_id."""
        if line.data is None:
            return Flaw("line_too_long", f"line {line.number} is longer than {MAX_LINE_BYTES >> 20} MiB")
        try:
            document = orjson.loads(line.data)
        except orjson.JSONDecodeError as error:
            return Flaw("invalid_json_line", f"line {line.number} is not valid JSON: {error}")
        if not isinstance(document, dict):
            return Flaw("invalid_json_line", f"line {line.number} is not a JSON object")
        custom_id = custom_id_of(line)
        if custom_id is None:
            wanted = f"a text of 1 to {MAX_CUSTOM_ID} characters"
            return Flaw("invalid_custom_id", f"line {line.number} has no custom_id ({wanted})")
        if repeated:
            return Flaw("duplicate_custom_id", f"line {line.number} repeats an earlier custom_id", custom_id)
        return self._check_request(document, custom_id, number=line.number)

    def _check_request(self, document: dict[str, Any], custom_id: str, *, number: int) -> Request | Flaw:
        method, url, body = document.get("method", "POST"), document.get("url"), document.get("body")
        if method != "POST":
            return Flaw("invalid_method", "method must be POST", custom_id)
        if url != self.endpoint:
            return Flaw("invalid_url", f"url must be the batch's endpoint, {self.endpoint}", custom_id)
        if not isinstance(body, dict):
            return Flaw("invalid_body", "body must be a JSON object", custom_id)
        return self._ask(body, custom_id, number=number)

    def _ask(self, body: dict[str, Any], custom_id: str, *, number: int) -> Request | Flaw:
        try:
            model = request_checks.model_name(body)
            request_checks.check(body, self.endpoint)
        except InvalidJob as error:
            return Flaw(error.code, f"line {number}: {error}", custom_id)
        target = self._aim(model, body)
        if target is None:
            routes = {route.name for route in self.config.routes}
            names = ", ".join(
                sorted(
                    {name for m in self.config.models for name in (m.pool, *m.aliases)} | self.pools | routes
                )
            )
            message = f"the model {model[:80]!r} does not exist; use {names}"
            return Flaw("model_not_found", message, custom_id)
        if self.only and model not in self.only and not target.pools <= self.only:
            return Flaw("insufficient_scope", f"the batch's API key may not use {model[:80]!r}", custom_id)
        wanted = {name: value for name, value in body.items() if name not in NOT_FOR_ENGINES}
        try:
            return Request(custom_id, target, wanted, orjson.dumps(wanted))
        except orjson.JSONEncodeError:  # it reads what it would not write: more than 254 levels
            return Flaw("invalid_body", "body nests too deep", custom_id)

    def _aim(self, model: str, body: dict[str, Any]) -> Aim | None:
        route = self.config.route(model)
        if route is not None:
            return aim(route, body, endpoint=self.endpoint, floors=self.floors)
        found = self.config.find(model)
        if found is not None:
            return Aim(found.pool)
        return Aim(model) if model in self.pools else None


def line_job_id(batch_id: str, number: int, *, pool: str, shards: Shards = UNSPLIT) -> str:
    """The job of a line: the same whenever the line is asked again, for as long as the pool has as many shards."""
    digest = hashlib.sha256(f"{batch_id}:{number}".encode()).digest()
    queue = shards.pick(pool, int.from_bytes(digest[17:25]))
    return derived_job_id(queue, seed=int.from_bytes(digest[:17]) >> 6)


def answered(custom_id: str, job_id: str, *, answer: bytes) -> bytes | None:
    """A line of the output file; None if the engine's answer is not JSON, or nests too deep to be written."""
    try:
        document = orjson.loads(answer)
        body = document if b"\n" in answer else orjson.Fragment(answer)
        return _dump(custom_id, job_id, response={"status_code": 200, "request_id": job_id, "body": body})
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None


def refused(custom_id: str, job_id: str, *, error: bytes) -> bytes:
    """A line of the error file, for a request that the engine did not answer well. `error`: what its job ended with."""
    try:
        said = orjson.loads(error)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        said = {"message": "the engine failed without a word", "type": "server_error"}
    document = {name: _plain(said.get(name)) for name in ("message", "type", "code", "param")}
    response = {
        "status_code": said.get("status", GONE_STATUS),
        "request_id": job_id,
        "body": {"error": document},
    }
    return _dump(custom_id, job_id, response=response)


def _plain(value: Any) -> str | None:
    """An engine may put anything into its error."""
    return value if value is None or isinstance(value, str) else str(value)[:1000]


def flawed(flaw: Flaw, request_id: str) -> bytes:
    """A line of the error file, for a request that was never answered."""
    return _dump(flaw.custom_id, request_id, error={"code": flaw.code, "message": flaw.message})


def _dump(custom_id: str | None, request_id: str, **result: Any) -> bytes:
    name = "batch_req_" + request_id.removeprefix("job_").partition(".")[0]
    document = {"id": name, "custom_id": custom_id, "response": None, "error": None} | result
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
