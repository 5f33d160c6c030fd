"""Plans a batch: reads its input once, cuts it into slices, finds custom_ids that repeat. Holds one line at a time."""

import hashlib
import sqlite3
from dataclasses import dataclass, field

import orjson

from broker.batch_record import BatchView, Mode
from broker.batch_scripts import Cut
from broker.errors import UnknownFile
from workers.batch.lease import Keeper
from workers.batch.lines import Line, custom_id_of, split_lines
from workers.batch.means import Means


class SeenIds:
    """Which custom_ids were there before. On disk beyond a few megabytes, for a file may have any number of lines."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # "": a temporary file, gone when closed
        self._database.execute("PRAGMA journal_mode=OFF")
        self._database.execute("PRAGMA cache_size=-4096")  # KiB
        self._database.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def repeats(self, custom_id: str) -> bool:
        """Whether it was asked for before; it has been from now on."""
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 0

    def close(self) -> None:
        self._database.close()


@dataclass(slots=True)
class Cutter:
    """Collects lines until a slice is full."""

    slice_lines: int
    number: int = 0
    total: int = 0
    _lines: int = 0
    _start: int = 0
    _end: int = 0
    _first: int = 0
    _duplicates: list[int] = field(default_factory=list)

    def add(self, line: Line, *, repeated: bool) -> Cut | None:
        """The slice that this line has filled."""
        if not self._lines:
            self._start, self._first = line.start, line.number
        if repeated:
            self._duplicates.append(line.number)
        self._lines += 1
        self._end = line.end
        self.total += 1
        return self.rest() if self._lines == self.slice_lines else None

    def rest(self) -> Cut | None:
        """The slice that is not full, if it has a line."""
        if not self._lines:
            return None
        cut = Cut(self.number, self._start, self._end, self._first, self._lines, tuple(self._duplicates))
        self.number += 1
        self._lines, self._duplicates = 0, []
        return cut


async def plan(means: Means, batch: BatchView, *, keeper: Keeper) -> list[str]:
    """Returns the units to send. A file without a line fails the batch. Raises StaleToken, RedisAway, OSError."""
    held = keeper.taken.held
    cutter, seen = Cutter(means.settings.slice_lines), SeenIds()
    try:
        await means.files.get(batch.spec.input_file_id)
        async for line in split_lines(means.files.read(batch.spec.input_file_id)):
            if keeper.mode is Mode.CANCEL:
                break
            custom_id = custom_id_of(line)
            cut = cutter.add(line, repeated=custom_id is not None and seen.repeats(custom_id))
            if cut is not None:
                await means.batches.cut_slice(held, cut)
    except UnknownFile as error:
        keeper.ending = True
        await means.batches.end(held, errors=_errors("input_file_not_found", str(error)))
        return []
    finally:
        seen.close()
    last = cutter.rest()
    if last is not None:
        await means.batches.cut_slice(held, last)
    keeper.ending = True
    if not cutter.total and keeper.mode is not Mode.CANCEL:
        await means.batches.end(held, errors=_errors("empty_file", "the input file has no lines"))
        return []
    at_once = means.settings.celery_concurrency
    return await means.batches.planned(held, lines=cutter.total, slices=cutter.number, at_once=at_once)


def _errors(code: str, message: str) -> bytes:
    return orjson.dumps([{"code": code, "message": message, "line": None, "param": "input_file_id"}])
