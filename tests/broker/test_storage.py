"""Bytes appear whole or not at all, on a local disk and in an object store."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.errors import ConfigError, UnknownFile
from broker.storage import CHUNK_BYTES, TEMPORARY, Storage, check_scheme
from tests.broker.bucket import Bucket


class Broken(Exception):
    """A writer's failure."""


async def write_and_break(storage: Storage, content: bytes) -> None:
    async with storage.writing("a") as writer:
        await writer.write(content)
        raise Broken


@pytest.fixture(params=["file", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A disk, and an object store."""
    Bucket.store.clear()
    return Storage(tmp_path.as_uri() if request.param == "file" else "bucket://headway/files")


async def read(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def test_what_is_written_is_read_back_in_ranges(storage: Storage) -> None:
    content = os.urandom(CHUNK_BYTES * 2 + 17)
    async with storage.writing("a/b") as writer:
        for start in range(0, len(content), 1000):
            await writer.write(content[start : start + 1000])
    assert writer.size_bytes == len(content)
    assert await read(storage.read("a/b")) == content
    assert await read(storage.read("a/b", start=5, end=CHUNK_BYTES + 9)) == content[5 : CHUNK_BYTES + 9]
    assert await read(storage.read("a/b", start=len(content))) == b""


async def test_nothing_is_seen_before_the_end(storage: Storage) -> None:
    async with storage.writing("a") as writer:
        await writer.write(b"x" * CHUNK_BYTES)
        assert not await storage.exists("a")
    assert await storage.exists("a")


async def test_a_failed_writer_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(Broken):
        await write_and_break(storage, b"x" * CHUNK_BYTES * 2)
    assert not await storage.exists("a")
    assert await storage.names(TEMPORARY) == []


async def test_a_failed_rewrite_leaves_what_was_there(storage: Storage) -> None:
    async with storage.writing("a") as writer:
        await writer.write(b"old")
    with pytest.raises(Broken):
        await write_and_break(storage, b"new" * CHUNK_BYTES)
    assert await read(storage.read("a")) == b"old"


async def test_a_cancelled_writer_leaves_nothing(storage: Storage) -> None:
    begun = asyncio.Event()

    async def write() -> None:
        async with storage.writing("a") as writer:
            await writer.write(b"x" * CHUNK_BYTES)
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await storage.exists("a")
    assert await storage.names(TEMPORARY) == []


async def test_reading_what_is_not_there_says_so_and_deleting_it_does_nothing(storage: Storage) -> None:
    with pytest.raises(UnknownFile):
        await read(storage.read("nope"))
    await storage.delete("nope")
    assert await storage.names("nope") == []


async def test_a_folder_is_listed_and_deleted_with_what_it_holds(storage: Storage) -> None:
    for name in ("f/a", "f/b", "g/c"):
        async with storage.writing(name) as writer:
            await writer.write(b"x")
    assert sorted(await storage.names("f")) == ["a", "b"]
    await storage.delete("f")
    assert not await storage.exists("f/a")
    assert await storage.exists("g/c")


async def test_leftovers_of_dead_writers_are_swept_when_old(tmp_path: Path) -> None:
    storage = Storage(tmp_path.as_uri())
    folder = tmp_path / TEMPORARY
    folder.mkdir()
    (folder / "new").write_bytes(b"x")
    (folder / "old").write_bytes(b"x")
    os.utime(folder / "old", (0, 0))
    assert storage.sweep_temporary(older_than_s=3600) == 1
    assert await storage.names(TEMPORARY) == ["new"]


def test_an_address_that_nothing_can_open_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="HEADWAY_FILES_URL"):
        Storage("nosuch://bucket")


def test_a_scheme_that_cannot_be_opened_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    check_scheme("file:///data")
    check_scheme("memory://x")
    with pytest.raises(ConfigError, match=r"HEADWAY_FILES_URL.*nonsense"):
        check_scheme("nonsense://x")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=r"HEADWAY_FILES_URL: s3:// .*pip install s3fs"):
        check_scheme("s3://bucket/x")
