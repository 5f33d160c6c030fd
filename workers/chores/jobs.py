"""The chores themselves. Each is short, bounded, and harmless when run twice at once.

Run by an RQ worker (`main.py`), put into its queue by the schedule (`cron.py`). Jobs have no arguments: what is to be
done is read from Redis.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any

import celery

from broker import batches, files, fleet
from broker.batch_record import folder, folders, message_for
from broker.batches import BatchStore
from broker.celery_options import celery_options
from broker.connection import Pipe
from broker.errors import UnknownBatch
from broker.files import file_path, server_time
from broker.keys import BatchKeys, file_key
from broker.settings import Settings, load_settings
from broker.storage import Storage

log = logging.getLogger("headway.chores")
MAX_SENT = 1000  # messages of one sweep
PAGE = 200
MAX_PAGES = 50
ABANDONED_S = 86_400.0  # an upload that takes longer than a day was left by a process that died

Message = tuple[str, tuple[str, ...]]


@cache
def _settings() -> Settings:
    return load_settings()


def _run(chore: Callable[[Settings, Pipe], Coroutine[Any, Any, int]]) -> int:
    async def run() -> int:
        pipe = Pipe(_settings().redis_url, timeout_s=_settings().redis_timeout_s)
        try:
            return await chore(_settings(), pipe)
        finally:
            await pipe.close()

    return asyncio.run(run())


def sweep_batches() -> int:
    """Sends again what seems lost: a message, or a task whose lease has run out. Returns how many."""
    return _run(_sweep)


def expire_files() -> int:
    """Removes the bytes of files whose records have expired, and what died processes left half written."""
    return _run(_expire_files)


def expire_batches() -> int:
    """Drops batches whose records have expired from the index, and parts of batches that have ended."""
    return _run(_expire_batches)


def forget_pools() -> int:
    """Drops pools that nobody has used for long."""
    return _run(lambda _, pipe: fleet.forget_pools(pipe))


async def _sweep(settings: Settings, pipe: Pipe) -> int:
    store = BatchStore(pipe, ttl_s=settings.batch_ttl_s)
    lost: list[Message] = []
    for batch_id in await store.active():
        lost += [message_for(batch_id, unit) for unit in await store.due(batch_id)]
        if len(lost) >= MAX_SENT:
            break
    if lost:
        log.info("%d units of batches are sent again", len(lost))
        await asyncio.to_thread(_send, settings.celery_url, lost)
    return len(lost)


def _send(url: str, messages: list[Message]) -> None:
    """`celery` loads itself when it is used first: some 20 MB that an idle Headway does without."""
    with celery.Celery("headway", set_as_current=False) as app:
        app.conf.update(celery_options(url))
        for name, ids in messages:
            app.send_task(name, args=ids, retry=False)


async def _expire_files(settings: Settings, pipe: Pipe) -> int:
    storage = Storage(settings.files_url)
    removed = await asyncio.to_thread(storage.sweep_temporary, older_than_s=ABANDONED_S)
    oldest_ms = (await server_time(pipe) - settings.batch_ttl_s) * 1000
    start = 0
    for _ in range(MAX_PAGES):
        limit = ("LIMIT", start, PAGE)
        names = await pipe.command("ZRANGEBYSCORE", files.INDEX, "-inf", oldest_ms, *limit)
        gone = [name.decode() for name in names if not await pipe.command("EXISTS", file_key(name.decode()))]
        for file_id in gone:
            await storage.delete(file_path(file_id))
            await pipe.command("ZREM", files.INDEX, file_id)
        removed += len(gone)
        start += len(names) - len(gone)  # those that a batch has had kept for longer
        if len(names) < PAGE:
            break
    return removed


async def _expire_batches(settings: Settings, pipe: Pipe) -> int:
    store, storage = BatchStore(pipe, ttl_s=settings.batch_ttl_s), Storage(settings.files_url)
    removed = 0
    oldest_ms = (await server_time(pipe) - settings.batch_ttl_s) * 1000
    for name in await pipe.command(
        "ZRANGEBYSCORE", batches.INDEX, "-inf", oldest_ms, "LIMIT", 0, PAGE * MAX_PAGES
    ):
        if not await pipe.command("EXISTS", BatchKeys(name.decode()).batch):
            await pipe.command("ZREM", batches.INDEX, name)
            removed += 1
    for batch_id in await storage.names(folders()):
        try:
            ended = (await store.get(batch_id)).status.terminal
        except UnknownBatch:
            ended = True
        if ended:
            await storage.delete(folder(batch_id))
            removed += 1
    return removed
