"""Takes a multipart upload apart while it arrives, so that a file of any size never sits in memory or in a second copy.

Starlette's own form parser would write the whole upload to a temporary file before a handler sees it.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from api.errors import ClientGone, invalid
from api.middleware import too_large
from broker.files import FileRecord, FileStore, NewFile

FILE = b"file"
MAX_FIELD_BYTES = 64 * 1024
MAX_PARTS = 16
FORM_OVERHEAD_BYTES = 64 * 1024  # boundaries, headers and the other fields of a form
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # its complaints are told to the caller
PURPOSE = re.compile(r"[a-z][a-z_-]{0,31}")


class Form:
    """What the parser has found so far. `file`: bytes of the file that have not been fetched yet."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[bytes, bytes] = {}
        self.filename: str | None = None
        self.file: list[bytes] = []
        self.complete = False
        self._header: tuple[bytes, bytes] = (b"", b"")
        self._name = b""
        self._parts = 0
        self._field_bytes = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._read_header(data[start:end], b""),
                "on_header_value": lambda data, start, end: self._read_header(b"", data[start:end]),
                "on_header_end": self._end_header,
                "on_part_data": lambda data, start, end: self._read_data(data[start:end]),
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> None:
        """Raises ApiError."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise invalid(f"the form cannot be read: {error}", code="invalid_form") from None

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise invalid(f"the form has more than {MAX_PARTS} parts", code="invalid_form")
        self._header, self._name = (b"", b""), b""

    def _read_header(self, name: bytes, value: bytes) -> None:
        self._header = (self._header[0] + name, self._header[1] + value)

    def _end_header(self) -> None:
        name, value = self._header
        self._header = (b"", b"")
        if name.lower() == b"content-disposition":
            _, options = parse_options_header(value)
            self._name = options.get(b"name", b"")
            if self._name == FILE:
                if self.filename is not None:
                    raise invalid("the form has more than one file", param="file", code="invalid_form")
                self.filename = options.get(b"filename", b"").decode("utf-8", "replace")

    def _read_data(self, data: bytes) -> None:
        if self._name == FILE:
            self.file.append(data)
            return
        self._field_bytes += len(data)
        if self._field_bytes > MAX_FIELD_BYTES:
            raise invalid("the form's fields are too large", code="invalid_form")
        self.fields[self._name] = self.fields.get(self._name, b"") + data

    def _end(self) -> None:
        self.complete = True


async def receive_file(
    request: Request, files: FileStore, *, max_bytes: int, new: NewFile, seen: Callable[[bytes], None]
) -> FileRecord:
    """Stores the form's `file` under its `purpose`, as `new`. `seen` is told the file's bytes. Raises ApiError, ClientGone, OSError, RedisAway."""
    try:
        form = Form(_boundary(request))
    except FormParserError as error:
        raise invalid(f"the form cannot be read: {error}", code="invalid_form") from None
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes + FORM_OVERHEAD_BYTES:
        raise too_large(max_bytes)
    read = 0
    async with files.create(new) as writer:
        async for data in _arriving(request):
            form.feed(data)
            read += len(data)
            pieces, form.file = form.file, []
            for piece in pieces:
                await writer.write(piece)
                seen(piece)
            if writer.size_bytes > max_bytes or read > max_bytes + FORM_OVERHEAD_BYTES:
                raise too_large(max_bytes)
        new.filename, new.purpose = _checked(form)
    assert new.record is not None
    return new.record


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise invalid(
            "send the file as multipart/form-data, with the fields file and purpose", code="invalid_form"
        )
    return boundary


async def _arriving(request: Request) -> AsyncIterator[bytes]:
    try:
        async for data in request.stream():
            yield data
    except ClientDisconnect:
        raise ClientGone("the client left while it sent its file") from None


def _checked(form: Form) -> tuple[str, str]:
    """Name and purpose. Raises ApiError."""
    if not form.complete:
        raise invalid("the form ends before its last boundary", code="invalid_form")
    if form.filename is None:
        raise invalid("file is required", param="file", code="missing_required_parameter")
    purpose = form.fields.get(b"purpose", b"").decode("utf-8", "replace")
    if not PURPOSE.fullmatch(purpose):
        raise invalid(
            "purpose is required, such as batch", param="purpose", code="missing_required_parameter"
        )
    return form.filename or "file", purpose
