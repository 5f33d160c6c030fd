"""Does one slice of a batch: reads its lines, has them answered, writes its part of the outputs in their order.

The part counts only once `BatchStore.done` has accepted its token; one that a stale holder has written is under another
name and is never looked at. Memory: one line of input, and at most AHEAD windows of answers.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from broker.batch_record import BatchView, Mode, part_path
from broker.batch_scripts import Cut, Tally
from broker.errors import RedisAway, UnknownFile
from broker.feedback import floors
from broker.files import file_path
from broker.fleet import known_pools
from broker.job import Status
from broker.storage import Writer
from workers.batch.ask import AWAY_S, Answer, Asker
from workers.batch.lease import Keeper
from workers.batch.lines import (
    Flaw,
    Line,
    LineRules,
    Request,
    answered,
    flawed,
    line_job_id,
    refused,
    split_lines,
)
from workers.batch.means import Means

MAX_TAKES = 50  # of one slice: far more than any row of crashes and deployments
AHEAD = 8  # windows: how far answers may be ahead of the line that the part waits for


@dataclass(frozen=True, slots=True)
class Result:
    """What becomes of one line: one of the output, one of the error file, or (`data` None) nothing."""

    data: bytes | None
    good: bool = False
    expired: bool = False


class SliceRun:
    """One attempt at one slice."""

    def __init__(self, means: Means, batch: BatchView, *, keeper: Keeper) -> None:
        self._means = means
        self._batch = batch
        self._keeper = keeper
        self._shards = means.config.shards
        self._asker = Asker(means, batch, keeper=keeper)
        self._written = Tally()  # behind the keeper's tally by the answers that wait for an earlier line

    async def run(self) -> list[str]:
        """Returns the units to send. Raises HandedBack, StaleToken, RedisAway, OSError."""
        watch = asyncio.create_task(self._asker.watch())
        try:
            await self._write_part()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._asker.close()
        units = await self._done()
        with contextlib.suppress(RedisAway):  # the records expire by themselves, only later
            await self._means.producer.forget(self._asker.job_ids)
        return units

    async def _done(self) -> list[str]:
        """Insists while Redis is away: whether the lease is still ours is decided there."""
        self._keeper.tally = self._written
        self._keeper.ending = True
        while True:
            try:
                return await self._means.batches.done(self._keeper.taken.held, self._keeper.tally)
            except RedisAway:
                await asyncio.sleep(AWAY_S)

    async def _write_part(self) -> None:
        taken = self._keeper.taken
        assert taken.cut is not None
        path = part_path(self._batch.batch_id, taken.cut.number, token=taken.held.token)
        storage = self._means.files.storage
        async with AsyncExitStack() as stack:
            out = await stack.enter_async_context(storage.writing(f"{path}.out"))
            err = await stack.enter_async_context(storage.writing(f"{path}.err"))
            if not (taken.is_first and self._keeper.mode is Mode.CANCEL):
                await self._fill(taken.cut, out, err=err)

    async def _fill(self, cut: Cut, out: Writer, *, err: Writer) -> None:
        """A slice that no worker gets through is given up, or its batch would never end."""
        if self._keeper.taken.held.token > MAX_TAKES:
            flaw = Flaw("slice_failed", f"{MAX_TAKES} attempts did not come to an end")
            await self._give_up(cut, err, flaw=flaw)
        else:
            await self._pass_through(cut, out, err=err)

    async def _pass_through(self, cut: Cut, out: Writer, *, err: Writer) -> None:
        """Starts lines in order and writes them in order."""
        most = AHEAD * self._means.settings.batch_window
        pending: deque[asyncio.Task[Result]] = deque()
        try:
            async for task in self._begin(cut):
                pending.append(task)
                while pending and (pending[0].done() or len(pending) >= most):
                    await self._write(await pending.popleft(), out, err=err)
            while pending:
                await self._write(await pending.popleft(), out, err=err)
        except UnknownFile:
            await self._give_up(cut, err, flaw=Flaw("input_file_gone", "the input file was deleted"))
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _begin(self, cut: Cut) -> AsyncIterator["asyncio.Task[Result]"]:
        """Raises UnknownFile if the input was deleted meanwhile."""
        spec, means = self._batch.spec, self._means
        rules = LineRules(
            spec.endpoint,
            means.config,
            frozenset(await known_pools(means.pipe)),
            frozenset(spec.pools),
            await floors(means.pipe),
        )
        repeats = frozenset(cut.duplicates)
        chunks = means.files.storage.read(file_path(spec.input_file_id), start=cut.start, end=cut.end)
        async for line in split_lines(chunks, start=cut.start, number=cut.first):
            request = rules.check(line, repeated=line.number in repeats)
            yield asyncio.create_task(self._line(line, request))

    async def _line(self, line: Line, request: Request | Flaw) -> Result:
        result = await self._result(line, request)
        self._keeper.tally = _counted(self._keeper.tally, result)
        return result

    async def _result(self, line: Line, request: Request | Flaw) -> Result:
        if isinstance(request, Flaw):
            job_id = line_job_id(self._batch.batch_id, line.number, pool="none")
            stopped = self._keeper.mode is Mode.CANCEL
            return Result(None) if stopped else Result(flawed(request, job_id))
        job_id = line_job_id(self._batch.batch_id, line.number, pool=request.aim.pool, shards=self._shards)
        return self._judge(await self._asker.ask(job_id, request), request, job_id=job_id)

    def _judge(self, answer: Answer, request: Request, *, job_id: str) -> Result:
        name = request.custom_id
        if answer.status is Status.SUCCEEDED:
            data = answered(name, job_id, answer=answer.data)
            broken = Flaw("invalid_answer", "the engine's answer is not JSON", name)
            return Result(data, good=True) if data else Result(flawed(broken, job_id))
        if answer.status is Status.FAILED:
            return Result(refused(name, job_id, error=answer.data))
        if self._keeper.mode is Mode.CANCEL:
            return Result(None)
        if answer.status is Status.CANCELLED and self._keeper.mode is Mode.FEED:
            return Result(flawed(Flaw("cancelled", "this request was cancelled by itself", name), job_id))
        late = Flaw("batch_expired", "the batch expired before this request was answered", name)
        return Result(flawed(late, job_id), expired=True)

    async def _write(self, result: Result, out: Writer, *, err: Writer) -> None:
        if result.data is None:
            return
        await (out if result.good else err).write(result.data)
        self._written = _counted(self._written, result)

    async def _give_up(self, cut: Cut, err: Writer, *, flaw: Flaw) -> None:
        """One error for all lines that are left: what they have asked is not known here."""
        tally = self._written
        left = cut.lines - tally.completed - tally.failed
        message = f"{flaw.message}; {left} requests from line {cut.first} on have no answer"
        job_id = line_job_id(self._batch.batch_id, cut.first, pool="none")
        await err.write(flawed(replace(flaw, message=message), job_id))
        self._written = replace(tally, failed=tally.failed + left)


def _counted(tally: Tally, result: Result) -> Tally:
    """With one line more."""
    if result.data is None:
        return tally
    if result.good:
        return replace(tally, completed=tally.completed + 1)
    return replace(tally, failed=tally.failed + 1, expired=tally.expired + result.expired)
