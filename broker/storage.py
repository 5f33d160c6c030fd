"""Bytes behind a URL (`file://`, `s3://`, whatever fsspec knows): streamed in and out, visible only when whole.

Used for uploaded files, and by the batch worker for its parts and outputs. fsspec blocks, so it runs in threads.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from broker.errors import ConfigError, UnknownFile

CHUNK_BYTES = 1 << 18
TEMPORARY = "tmp"  # folder of what is being written; whatever stays there was left by a process that died


def check_scheme(url: str) -> None:
    """Whether the package that opens such URLs is installed. Raises ConfigError that names it."""
    for scheme in (part.partition(":")[0] for part in url.split("::")):
        known = known_implementations.get(scheme, {})
        package = str(known.get("class", "")).partition(".")[0]
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            hint = f"pip install {package}" if package not in ("", "fsspec") else str(error)
            raise ConfigError(f"HEADWAY_FILES_URL: {scheme}:// cannot be opened here: {hint}") from None
        except ValueError:
            raise ConfigError(f"HEADWAY_FILES_URL: fsspec knows no scheme {scheme}://") from None


class Storage:
    """A folder of objects named by relative paths. Raises ConfigError if fsspec cannot open the URL."""

    def __init__(self, url: str) -> None:
        try:
            self._fs, root = fsspec.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"HEADWAY_FILES_URL: {url.partition(':')[0]}:// cannot be opened: {error}"
            ) from None
        self._root = root.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)

    @contextlib.asynccontextmanager
    async def writing(self, path: str) -> AsyncIterator["Writer"]:
        """A writer whose bytes appear under `path` when the block ends well, and nowhere if it raises.

        An object that is there already is replaced in one step. Raises OSError.
        """
        sink = await asyncio.to_thread(self._open_sink, path)
        writer = Writer(sink)
        try:
            yield writer
            await writer.flush()
            await asyncio.to_thread(sink.commit)
        except BaseException:
            # shielded: a cancelled upload must not leave its bytes behind
            await asyncio.shield(asyncio.to_thread(sink.discard))
            raise

    async def read(self, path: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end`, in chunks. Raises UnknownFile, OSError."""
        try:
            source = await asyncio.to_thread(self._fs.open, self._full(path), "rb")
        except FileNotFoundError:
            raise UnknownFile(f"the stored bytes {path} are gone") from None
        try:
            if start:
                await asyncio.to_thread(source.seek, start)
            left = float("inf") if end is None else end - start
            while left > 0 and (data := await asyncio.to_thread(source.read, int(min(CHUNK_BYTES, left)))):
                left -= len(data)
                yield data
        finally:
            source.close()

    async def exists(self, path: str) -> bool:
        return bool(await asyncio.to_thread(self._fs.exists, self._full(path)))

    async def names(self, path: str) -> list[str]:
        """What a folder holds; nothing if it is not there."""
        try:
            found = await asyncio.to_thread(self._fs.ls, self._full(path), detail=False)
        except FileNotFoundError:
            return []
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    async def delete(self, path: str) -> None:
        """Removes an object, or a folder with all it holds; nothing if it is not there."""
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(self._fs.rm, self._full(path), recursive=True)

    def sweep_temporary(self, *, older_than_s: float) -> int:
        """Removes what died processes were writing; returns how many. Object stores keep no such leftovers."""
        if not self._local:
            return 0
        removed = 0
        with contextlib.suppress(FileNotFoundError):
            for entry in self._fs.ls(self._full(TEMPORARY), detail=True):
                if entry["mtime"] < time.time() - older_than_s:
                    self._fs.rm(entry["name"])
                    removed += 1
        return removed

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _open_sink(self, path: str) -> "_Sink":
        final = self._full(path)
        self._fs.makedirs(final.rpartition("/")[0], exist_ok=True)
        if not self._local:
            return _Sink(self._fs.open(final, "wb", autocommit=False))
        self._fs.makedirs(self._full(TEMPORARY), exist_ok=True)
        return _LocalSink(self._fs.open, self._full(f"{TEMPORARY}/{os.urandom(12).hex()}"), final=final)


class _Sink:
    """One object being written to a store that shows it when committed. The lock keeps `discard` off a late write."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open = True

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._open:
                self._target.write(data)

    def commit(self) -> None:
        with self._lock:
            self._open = False
            self._target.close()
            self._target.commit()

    def discard(self) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._target.discard()
            self._target.closed = True  # or the garbage collector would close it, and upload what is buffered


class _LocalSink(_Sink):
    """A file that gets its name last. Its bytes are on disk before, or a power cut could leave the name alone."""

    def __init__(self, open_: Callable[[str, str], Any], temporary: str, *, final: str) -> None:
        super().__init__(open_(temporary, "wb"))
        self._temporary = temporary
        self._final = final

    def commit(self) -> None:
        with self._lock:
            self._open = False
            self._target.flush()
            os.fsync(self._target.fileno())
            self._target.close()
            os.replace(self._temporary, self._final)  # noqa: PTH105 - fsspec paths are strings

    def discard(self) -> None:
        with self._lock:
            self._open = False
            self._target.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)  # noqa: PTH108 - fsspec paths are strings


class Writer:
    """Collects small writes, so that a thread is asked once per CHUNK_BYTES. `size_bytes`: written so far."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink
        self._buffer = bytearray()
        self.size_bytes = 0

    async def write(self, data: bytes) -> None:
        self._buffer += data
        self.size_bytes += len(data)
        if len(self._buffer) >= CHUNK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        if data:
            await asyncio.to_thread(self._sink.write, data)
