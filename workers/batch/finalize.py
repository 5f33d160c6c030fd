"""Puts a batch together: its slices' parts, in order, become the output and the error file; then it ends.

The files' ids follow from the batch, so doing it again replaces them by the same.
"""

import hashlib

from broker.batch_record import BatchView, folder, part_path
from broker.files import NewFile, derived_file_id
from workers.batch.lease import Keeper
from workers.batch.means import Means

PURPOSE = "batch_output"


async def finalize(means: Means, batch: BatchView, *, keeper: Keeper) -> list[str]:
    """Returns no units. Raises StaleToken, RedisAway, OSError."""
    tokens = await means.batches.parts(batch)
    output = await _join(means, batch, tokens=tokens, kind="out") if batch.completed else ""
    error_file = await _join(means, batch, tokens=tokens, kind="err") if batch.failed else ""
    keeper.ending = True
    await means.batches.end(keeper.taken.held, output=output, error_file=error_file)
    await means.files.storage.delete(folder(batch.batch_id))
    return []


async def _join(means: Means, batch: BatchView, *, tokens: dict[int, int], kind: str) -> str:
    seed = hashlib.sha256(f"{batch.batch_id}:{kind}".encode()).digest()
    name = f"{batch.batch_id}_{'output' if kind == 'out' else 'error'}.jsonl"
    new = NewFile(name, PURPOSE, derived_file_id(seed), tenant=batch.spec.tenant)
    async with means.files.create(new) as writer:
        for number, token in tokens.items():
            path = part_path(batch.batch_id, number, token=token)
            async for chunk in means.files.storage.read(f"{path}.{kind}"):
                await writer.write(chunk)
    return new.file_id
