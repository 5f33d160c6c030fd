"""Files as the OpenAI API knows them: a small record in Redis, the bytes in `Storage` under the file's id.

The record is what makes a file exist: it is written after the bytes are whole. It expires by itself; the chore
`expire_files` then finds the id in the index and removes the bytes.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import orjson

from broker.connection import Pipe
from broker.errors import UnknownFile
from broker.job import base32
from broker.keys import file_key
from broker.paging import Listing, page_through
from broker.storage import Storage, Writer

INDEX = "hw:files"
FILE_ID = re.compile(r"file-[0-9a-z]{24}")
MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class FileRecord:
    """`created_at`, `expires_at`: seconds since the epoch."""

    file_id: str
    filename: str
    purpose: str
    size_bytes: int
    created_at: int
    expires_at: int
    status: str = "processed"
    tenant: str = "default"


@dataclass(frozen=True, slots=True)
class FileQuery:
    """Which files to list: at most `limit`, following the file `after` in the order asked for."""

    purpose: str = ""
    limit: int = 100
    after: str = ""
    oldest_first: bool = False
    tenant: str = ""  # "": of everybody


@dataclass(slots=True)
class NewFile:
    """A file while it is written: its name and purpose may become known after its bytes. Then its record."""

    filename: str = ""
    purpose: str = ""
    file_id: str = field(default_factory=lambda: f"file-{base32(int.from_bytes(os.urandom(15)), 24)}")
    record: FileRecord | None = None
    tenant: str = "default"


def derived_file_id(seed: bytes) -> str:
    """A stable id for a file that may be produced again after a crash. `seed`: at least 15 bytes of a hash."""
    return f"file-{base32(int.from_bytes(seed[:15]), 24)}"


def file_path(file_id: str) -> str:
    """Where in the storage the bytes are."""
    return f"data/{file_id}"


async def server_time(pipe: Pipe) -> float:
    """Redis' clock, seconds since the epoch."""
    seconds, micros = await pipe.command("TIME")
    return int(seconds) + int(micros) / 1e6


class FileStore:
    """`ttl_s`: how long a file is kept. `pipe` is shared with whoever else lives in this process."""

    def __init__(self, pipe: Pipe, storage: Storage, *, ttl_s: float) -> None:
        self._pipe = pipe
        self.storage = storage
        self._ttl_s = ttl_s

    @contextlib.asynccontextmanager
    async def create(self, new: "NewFile") -> AsyncIterator[Writer]:
        """A file to be written; `new.record` is there when the block has ended well. Raises OSError, RedisAway.

        A file of the same id is replaced.
        """
        async with self.storage.writing(file_path(new.file_id)) as writer:
            yield writer
        now = await server_time(self._pipe)
        record = FileRecord(
            file_id=new.file_id,
            filename=new.filename[:MAX_NAME],
            purpose=new.purpose,
            size_bytes=writer.size_bytes,
            created_at=int(now),
            expires_at=int(now + self._ttl_s),
            tenant=new.tenant,
        )
        # the index first: a file that is only in the index is cleaned away, one that is not in it never would be
        await self._pipe.command("ZADD", INDEX, int(now * 1000), new.file_id)
        await self._put(record)
        new.record = record

    async def _put(self, record: FileRecord, *only: str) -> None:
        key = file_key(record.file_id)
        await self._pipe.command("SET", key, orjson.dumps(asdict(record)), "EXAT", record.expires_at, *only)

    async def get(self, file_id: str) -> FileRecord:
        """Raises UnknownFile."""
        found = await self._load([file_id]) if FILE_ID.fullmatch(file_id) else [None]
        if found[0] is None:
            raise UnknownFile(f"there is no file {file_id[:80]!r} (or it has expired)")
        return found[0]

    async def keep(self, file_id: str, *, for_s: float) -> None:
        """Puts the file's expiry off, to at least `for_s` after now: a batch needs it. Raises UnknownFile."""
        record = await self.get(file_id)
        until = int(await server_time(self._pipe) + for_s)
        if until > record.expires_at:
            await self._put(replace(record, expires_at=until), "XX")

    async def list_files(self, query: FileQuery) -> tuple[list[FileRecord], bool]:
        """Newest first unless asked otherwise, and whether more follow."""

        def wanted(record: FileRecord) -> bool:
            return query.purpose in ("", record.purpose) and query.tenant in ("", record.tenant)

        listing = Listing(INDEX, self._load, wanted, query.limit, query.after, query.oldest_first)
        return await page_through(self._pipe, listing)

    async def _load(self, ids: Sequence[str]) -> list[FileRecord | None]:
        raws = await asyncio.gather(*(self._pipe.command("GET", file_key(file_id)) for file_id in ids))
        return [FileRecord(**orjson.loads(raw)) if raw else None for raw in raws]

    def read(self, file_id: str) -> AsyncIterator[bytes]:
        """The file's bytes, in chunks. Raises UnknownFile, OSError."""
        return self.storage.read(file_path(file_id))

    async def delete(self, file_id: str) -> None:
        """Raises UnknownFile."""
        await self.get(file_id)
        await self._pipe.command("DEL", file_key(file_id))
        await self.storage.delete(file_path(file_id))
        await self._pipe.command("ZREM", INDEX, file_id)
