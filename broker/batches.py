"""Batches: what the API shows of one, and the leases under which its units of work are done.

A batch is planned into slices (byte ranges of its input file); a bounded number of them is out at a time; each is done
under a fenced lease; the last one done lets the batch be put together. Which units exist and who holds them is in
Redis; the lines stay in files. Used by the API (create, look, cancel), the Celery tasks (units) and the sweeper.
Invariant: a unit's result counts once, whatever is sent twice, and a stale holder changes nothing.
"""

import asyncio
from collections.abc import Sequence

from broker import batch_scripts
from broker.batch_record import BatchSpec, BatchStatus, BatchView, Mode, Taken, batch_id_of, view
from broker.batch_scripts import Cut, Held, Outcome, Tally
from broker.connection import Pipe
from broker.errors import BatchEnded, StaleToken, UnknownBatch
from broker.files import server_time
from broker.keys import BatchKeys
from broker.paging import Listing, page_through

INDEX = "hw:batches"
ACTIVE = "hw:batches:active"  # ZSET with a TTL: those that have not ended, for the sweeper
DUE_AT_ONCE = 100
CREATION_S = 60.0


class BatchStore:
    """`ttl_s`: how long an ended batch is kept. `pipe` is shared with whoever else lives in this process."""

    def __init__(self, pipe: Pipe, *, ttl_s: float) -> None:
        self._pipe = pipe
        self._ttl_s = ttl_s

    async def create(self, spec: BatchSpec) -> BatchView:
        """Accepts a batch; `plan` is to be sent for it. A repeat by `spec.key` returns the batch there is."""
        batch_id = batch_id_of(spec)
        now_ms = int(await server_time(self._pipe) * 1000)
        # into the indexes first: an id without a batch is skipped, a batch without an index entry would be lost
        await asyncio.gather(
            self._pipe.command("ZADD", INDEX, "NX", now_ms, batch_id),
            self._pipe.command("ZADD", ACTIVE, now_ms, batch_id),
            self._pipe.command("PEXPIRE", ACTIVE, int((spec.window_s + self._ttl_s) * 1000)),
        )
        fields: dict[str, str | bytes | int | float] = {
            "input_file": spec.input_file_id,
            "endpoint": spec.endpoint,
            "class": int(spec.service_class),
            "window": spec.completion_window,
            "window_s": spec.window_s,
            "tenant": spec.tenant,
            "metadata": spec.metadata,
            "pools": ",".join(spec.pools),
        }
        await self._pipe.run(
            batch_scripts.create(batch_id, fields, window_s=spec.window_s, ttl_s=self._ttl_s)
        )
        return await self.get(batch_id)

    async def get(self, batch_id: str) -> BatchView:
        """Raises UnknownBatch."""
        found = (await self._load([batch_id]))[0]
        if found is None:
            raise UnknownBatch(f"there is no batch {batch_id[:80]!r} (or its record has expired)")
        return found

    async def list_batches(
        self, *, limit: int, after: str = "", tenant: str = ""
    ) -> tuple[list[BatchView], bool]:
        """Newest first, and whether more follow. `tenant` "": of everybody."""

        def wanted(batch: BatchView) -> bool:
            return tenant in ("", batch.spec.tenant)

        return await page_through(self._pipe, Listing(INDEX, self._load, wanted, limit, after))

    async def _load(self, ids: Sequence[str]) -> list[BatchView | None]:
        flats = await asyncio.gather(*(self._pipe.command("HGETALL", BatchKeys(i).batch) for i in ids))
        return [
            view(i, dict(zip(flat[::2], flat[1::2], strict=True))) if flat else None
            for i, flat in zip(ids, flats, strict=True)
        ]

    async def cancel(self, batch_id: str) -> list[str]:
        """Has the batch stop; returns the units to send. A repeat is harmless. Raises UnknownBatch, BatchEnded."""
        answer = await self._pipe.run(batch_scripts.cancel(batch_id))
        if not answer:
            raise UnknownBatch(f"there is no batch {batch_id[:80]!r} (or its record has expired)")
        status = BatchStatus(answer[1].decode())
        if status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            raise BatchEnded(f"a batch with status {status.value!r} cannot be cancelled")
        return [unit.decode() for unit in answer[2:]]

    async def take(self, batch_id: str, unit: str, *, lease_s: float) -> Taken | None:
        """A lease on one unit; None if it is done, unknown or another task's."""
        answer = await self._pipe.run(batch_scripts.take(batch_id, unit, lease_s=lease_s))
        if not answer:
            return None
        token, mode, left_ms, start, end, first, lines, duplicates = answer
        cut = None
        if start is not None:
            repeats = tuple(int(n) for n in duplicates.split(b",") if n)
            cut = Cut(int(unit), int(start), int(end), int(first), int(lines), repeats)
        return Taken(Held(batch_id, unit, int(token)), Mode(mode.decode()), int(left_ms) / 1000, cut)

    async def renew(self, held: Held, tally: Tally, *, lease_s: float) -> Mode:
        """Keeps the lease and shows the progress; 0 s gives it back. Raises StaleToken."""
        mode = await self._pipe.run(batch_scripts.renew(held, tally, lease_s=lease_s))
        if mode is None:
            raise StaleToken(f"unit {held.unit} of {held.batch_id} is no longer ours")
        return Mode(mode.decode())

    async def cut_slice(self, plan: Held, cut: Cut) -> None:
        """Raises StaleToken."""
        if not await self._pipe.run(batch_scripts.cut_slice(plan, cut)):
            raise StaleToken(f"the plan of {plan.batch_id} is no longer ours")

    async def planned(self, plan: Held, *, lines: int, slices: int, at_once: int) -> list[str]:
        """Ends the planning; returns the units to send. Raises StaleToken."""
        call = batch_scripts.planned(plan, lines=lines, slices=slices, at_once=at_once)
        return _units(await self._pipe.run(call), plan)

    async def done(self, held: Held, tally: Tally) -> list[str]:
        """Ends a slice; returns the units to send. Raises StaleToken."""
        return _units(await self._pipe.run(batch_scripts.done(held, tally)), held)

    async def parts(self, batch: BatchView) -> dict[int, int]:
        """By slice, in the order of the input: the token under which its part was stored."""
        keys = BatchKeys(batch.batch_id)
        asked = (self._pipe.command("HGET", keys.unit(str(n)), "part") for n in range(batch.sent))
        return {n: int(token) for n, token in enumerate(await asyncio.gather(*asked)) if token}

    async def end(self, held: Held, *, errors: bytes = b"", output: str = "", error_file: str = "") -> None:
        """Ends the batch and drops the records of its slices. Raises StaleToken."""
        batch = await self.get(held.batch_id)
        outcome = Outcome(self._ttl_s, errors, output, error_file)
        if await self._pipe.run(batch_scripts.end(held, outcome)) is None:
            raise StaleToken(f"{held.batch_id} was ended by another task")
        await self._pipe.command("ZREM", ACTIVE, held.batch_id)
        keys = BatchKeys(held.batch_id)
        await asyncio.gather(
            *(self._pipe.command("DEL", keys.unit(str(n))) for n in range(batch.slices)),
            self._pipe.command("DEL", keys.unit(batch_scripts.PLAN)),
        )

    async def active(self, *, limit: int = 1000) -> list[str]:
        """Ids of batches that have not ended, oldest first."""
        return [i.decode() for i in await self._pipe.command("ZRANGE", ACTIVE, 0, limit - 1)]

    async def due(self, batch_id: str) -> list[str]:
        """Units whose message or task seems lost, to be sent again. A batch that has ended leaves the active ones."""
        status, *units = await self._pipe.run(batch_scripts.due(batch_id, limit=DUE_AT_ONCE))
        if status is None:
            await self._drop_nameless(batch_id)
        elif BatchStatus(status.decode()).terminal:
            await self._pipe.command("ZREM", ACTIVE, batch_id)
        return [unit.decode() for unit in units]

    async def _drop_nameless(self, batch_id: str) -> None:
        """Of an id without a batch: it may be created in this moment, or its creator died before."""
        listed_ms = await self._pipe.command("ZSCORE", ACTIVE, batch_id)
        if listed_ms and float(listed_ms) / 1000 < await server_time(self._pipe) - CREATION_S:
            await self._pipe.command("ZREM", ACTIVE, batch_id)


def _units(answer: list[bytes] | None, held: Held) -> list[str]:
    if answer is None:
        raise StaleToken(f"unit {held.unit} of {held.batch_id} is no longer ours")
    return [unit.decode() for unit in answer]
