"""An object store for fsspec, in memory: objects appear when an upload is committed, as they do in S3."""

from collections.abc import Iterable
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem


class BucketFile(AbstractBufferedFile):  # type: ignore[misc]
    """Collects parts, as a multipart upload does."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.buffer.seek(0)
        self.parts.append(self.buffer.read())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        Bucket.store[self.path] = b"".join(self.parts)

    def discard(self) -> None:
        self.parts = []

    def _fetch_range(self, start: int, end: int) -> bytes:
        return Bucket.store[self.path][start:end]


class Bucket(AbstractFileSystem):  # type: ignore[misc]
    """One store for the process. Folders are prefixes."""

    protocol = "bucket"
    store: ClassVar[dict[str, bytes]] = {}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> BucketFile:
        return BucketFile(self, path, mode, block_size=1 << 16, autocommit=options.get("autocommit", True))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path in self.store:
            return {"name": path, "size": len(self.store[path]), "type": "file"}
        if self._under(path):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        heads = {name[len(path) + 1 :].partition("/")[0] for name in self._under(path)}
        if not heads:
            raise FileNotFoundError(path)
        names = [f"{path}/{head}" for head in sorted(heads)]
        return [self.info(name) for name in names] if detail else names

    def rm_file(self, path: str) -> None:
        self.store.pop(path, None)

    def rmdir(self, path: str) -> None:
        """A prefix is gone when nothing has it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """A prefix is there when something has it."""

    def _under(self, path: str) -> Iterable[str]:
        return [name for name in self.store if name.startswith(path + "/")]


fsspec.register_implementation("bucket", Bucket, clobber=True)
