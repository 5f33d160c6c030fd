"""The chores themselves. Each is short, bounded, and harmless when run twice at once.

Run by an RQ worker (`main.py`), put into its queue by the schedule (`cron.py`). Jobs have no arguments: what is to be
done is read from Redis.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any

import celery

from broker import batches, feedback, files, fleet
from broker.batch_record import folder, folders, message_for
from broker.batches import BatchStore
from broker.celery_options import celery_options
from broker.config import load_config
from broker.connection import Pipe
from broker.errors import ConfigError, UnknownBatch
from broker.files import file_path, server_time
from broker.keys import BatchKeys, file_key
from broker.settings import Settings, load_settings
from broker.storage import Storage
from predictor import own_traffic
from predictor.floors import learn
from predictor.model_store import ModelStore
from predictor.retrain import NEW_OUTCOMES, run
from workers.chores import callbacks

log = logging.getLogger("headway.chores")
MAX_SENT = 1000  # messages of one sweep
PAGE = 200
MAX_PAGES = 50
MOST_RATED = 20_000  # answers that the floors are learned from
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


def retrain() -> int:
    """Trains the predictor on what has been served, where it is time and there is enough new; 1: better models serve now."""
    return _run(_retrain)


def call_back() -> int:
    """Tells the callback addresses of jobs that have ended. Returns how many took it."""
    return _run(callbacks.call_back)


def forget_pools() -> int:
    """Drops pools that nobody has used for long."""
    return _run(lambda _, pipe: fleet.forget_pools(pipe))


def learn_floors() -> int:
    """Has what callers said of answers move the floors of cascades and the thresholds of routes. Returns how many."""
    return _run(_learn_floors)


async def _learn_floors(settings: Settings, pipe: Pipe) -> int:
    routes = load_config(settings).routes
    learned = learn(await feedback.latest(pipe, MOST_RATED), routes) if routes else {}
    await feedback.keep_floors(pipe, learned)
    return len(learned)


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


async def _retrain(settings: Settings, pipe: Pipe) -> int:
    store = ModelStore(settings.home)
    if not settings.retrain_s or time.time() - store.trained_at() < settings.retrain_s:
        return 0
    found = await own_traffic.collect(pipe, most=settings.learn_outcomes)
    if sum(seen.at[0] > store.trained_to() for seen in found) < NEW_OUTCOMES:
        return 0
    with tempfile.TemporaryDirectory(prefix="headway-rows-") as folder:
        path = Path(folder) / "rows.jsonl"
        own_traffic.write_rows(path, found)
        store.note_training(found[-1].at[0])
        try:
            verdict = await asyncio.to_thread(run, path, settings.home)
        except ConfigError as error:
            log.warning("the predictor was not trained: %s", error)
            return 0
    losses = f"{verdict.loss:g} tokens of loss against {verdict.serving_loss:g} of {verdict.serving}"
    said = "serves now" if verdict.promoted else f"was refused: {verdict.reason}"
    log.info("models %s %s (%s, on %d requests)", verdict.version, said, losses, verdict.requests)
    return int(verdict.promoted)
