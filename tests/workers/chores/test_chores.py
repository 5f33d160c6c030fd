"""What is expired is removed, what is lost is sent again, and what is in use stays."""

import asyncio
import os
from pathlib import Path

import pytest
import redis
from rq import Queue
from rq.cron import CronScheduler
from rq.serializers import JSONSerializer

from broker import feedback
from broker.batch_record import BatchSpec
from broker.batch_scripts import PLAN
from broker.batches import BatchStore
from broker.connection import Pipe
from broker.files import FileQuery, FileStore, NewFile
from broker.keys import FEEDBACK, FLOORS
from broker.settings import Settings
from broker.storage import Storage
from workers.chores import cron, jobs

TTL_S = 3600.0


@pytest.fixture
def settings(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    made = Settings(redis_url=redis_url, home=tmp_path, batch_ttl_s=TTL_S)
    monkeypatch.setattr(jobs, "_settings", lambda: made)
    return made


@pytest.fixture
def files(settings: Settings, pipe: Pipe) -> FileStore:
    return FileStore(pipe, Storage(settings.files_url), ttl_s=TTL_S)


@pytest.fixture
def batches(settings: Settings, pipe: Pipe) -> BatchStore:
    return BatchStore(pipe, ttl_s=TTL_S)


async def put(files: FileStore, content: bytes = b"x") -> str:
    new = NewFile("a", "batch")
    async with files.create(new) as writer:
        await writer.write(content)
    return new.file_id


async def run(chore: object) -> int:
    """As RQ does: in a thread without a loop."""
    assert callable(chore)
    return int(await asyncio.to_thread(chore))


async def test_files_whose_records_expired_lose_their_bytes(files: FileStore, pipe: Pipe) -> None:
    kept, expired, extended = [await put(files) for _ in range(3)]
    await files.keep(extended, for_s=2 * TTL_S)
    for file_id in (expired, extended):
        await pipe.command("ZADD", "hw:files", "XX", 1, file_id)
    await pipe.command("DEL", f"hw:file:{expired}")
    assert await run(jobs.expire_files) == 1
    assert {record.file_id for record in (await files.list_files(FileQuery()))[0]} == {kept, extended}
    assert sorted(await files.storage.names("data")) == sorted([kept, extended])
    assert await pipe.command("ZSCORE", "hw:files", expired) is None


async def test_what_dead_uploads_left_is_removed(settings: Settings, files: FileStore) -> None:
    await put(files)
    left = settings.home / "files" / "tmp" / "left"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert await run(jobs.expire_files) == 1
    assert not left.exists()


async def test_old_batches_leave_the_index_and_ended_ones_their_parts(
    files: FileStore, batches: BatchStore, pipe: Pipe
) -> None:
    active, ended, gone = [await batches.create(BatchSpec("file-a", "/v1/completions")) for _ in range(3)]
    taken = await batches.take(ended.batch_id, PLAN, lease_s=10)
    assert taken is not None
    await batches.end(taken.held, errors=b"[]")
    for batch in (active, ended, gone):
        async with files.storage.writing(f"batches/{batch.batch_id}/0000000-1.out") as writer:
            await writer.write(b"x")
    await pipe.command("ZADD", "hw:batches", "XX", 1, gone.batch_id)
    await pipe.command("DEL", f"hw:batch:{{{gone.batch_id}}}")
    assert await run(jobs.expire_batches) == 3
    assert await files.storage.names("batches") == [active.batch_id]
    assert await pipe.command("ZSCORE", "hw:batches", gone.batch_id) is None
    assert await pipe.command("ZCARD", "hw:batches") == 2


async def test_the_sweep_sends_what_is_due_and_nothing_else(batches: BatchStore, pipe: Pipe) -> None:
    due, waiting = [await batches.create(BatchSpec("file-a", "/v1/completions")) for _ in range(2)]
    await pipe.command("ZADD", f"hw:batch:{{{due.batch_id}}}:todo", "XX", 1, PLAN)
    assert await run(jobs.sweep_batches) == 1
    (message,) = await pipe.command("LRANGE", "headway.celery:batch", 0, -1)
    assert b'"headway.plan"' in message
    assert due.batch_id.encode() in message
    assert waiting.batch_id.encode() not in message
    assert await run(jobs.sweep_batches) == 0


async def test_the_schedule_writes_json(redis_url: str, settings: Settings) -> None:
    def queued() -> list[list[str]]:
        with redis.Redis.from_url(redis_url) as connection:
            scheduler = CronScheduler(connection)
            scheduler.load_config_from_file(cron.__name__)
            assert len(scheduler.enqueue_jobs()) == 7
            names = []
            for name in (cron.QUEUE, cron.SLOW_QUEUE):
                queue = Queue(name, connection=connection, serializer=JSONSerializer)
                names.append(sorted(job.func_name or "" for job in queue.jobs))
                queue.delete(delete_jobs=True)
            return names

    quick, slow = await asyncio.to_thread(queued)
    assert slow == ["workers.chores.jobs.retrain"]
    assert quick == [
        f"workers.chores.jobs.{n}"
        for n in (
            "call_back",
            "expire_batches",
            "expire_files",
            "forget_pools",
            "learn_floors",
            "sweep_batches",
        )
    ]


async def test_what_callers_said_of_answers_moves_the_floor_of_their_kind(
    settings: Settings, pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headway.yaml"
    file.write_text(
        "models: [{pool: s}, {pool: l}]\nroutes: [{name: auto, small: s, large: l, cascade: true}]\n", "utf-8"
    )
    named = settings.model_copy(update={"config": file})
    monkeypatch.setattr(jobs, "_settings", lambda: named)
    for n in range(60):
        good, confidence = int(n % 2 == 0), "0.9" if n % 2 == 0 else "0.5"
        words = (
            "route",
            "auto",
            "kind",
            "fact",
            "p",
            "0.8",
            "pool",
            "s",
            "good",
            good,
            "why",
            "",
            "conf",
            confidence,
        )
        await pipe.command("XADD", FEEDBACK, "*", *words)
    assert await run(jobs.learn_floors) == 1
    assert await feedback.floors(pipe) == {"auto fact": 0.9}
    assert await pipe.command("PTTL", FLOORS) > 0
