"""Seeded fuzz: whatever comes, the answer is one that the caller can act on, and nothing stays behind. The long form: `make fuzz`."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.cli.redis_server import RedisServer
from broker.batch_scripts import PLAN
from broker.settings import Settings
from tests import fuzz_checks
from tests.api.harness import ScriptedWorker, Served, serve, whole_answer
from tests.fuzzed import AFTER, BOM, HEADER_TEXT, HUGE, IDS, LAST_EVENT_IDS, batch_files, lines_of
from tests.workers.batch.rig import Bench, Engine, bench, request_line, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def seeded(examples: int) -> settings:
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=QUIET
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def options(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return Settings(
        redis_url=redis_server.url, home=tmp_path_factory.mktemp("fuzz"), slice_lines=5, ping_s=0.5
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(options: Settings) -> AsyncIterator[Served]:
    async with serve(options) as there:
        yield there


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def table(options: Settings) -> AsyncIterator[Bench]:
    """Stands in for Celery, whose messages a test passes on by hand."""
    async with bench(options) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ended_job(served: Served, options: Settings) -> AsyncIterator[str]:
    worker = await ScriptedWorker.join(options.redis_url, "small")
    asked = {"model": "small", "prompt": "hi", "class": "P1"}
    job_id = str((await served.http.post("/v1/jobs", json=asked)).json()["id"])
    lease = await worker.claim()
    await worker.append(lease, b'{"a":1}', b'{"b":2}', seq=2)
    await worker.finish(lease, whole_answer("hello"))
    yield job_id
    await worker.close()


@seeded(6)
@given(files=st.lists(batch_files(), min_size=4, max_size=4))
async def test_every_line_of_any_batch_file_ends_as_an_answer_or_an_error(
    served: Served, table: Bench, *, files: list[bytes]
) -> None:
    async def started(batch_id: str) -> None:
        await table.send(batch_id, PLAN)

    async with running(Engine(served.redis_url)):
        found = await asyncio.gather(
            *(fuzz_checks.batch_complaints(served.http, content, started=started) for content in files)
        )
    assert not [complaint for each in found for complaint in each]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", 0),
        (BOM, 0),
        (b"\n \r\n", 0),
        (BOM + request_line("a") + HUGE + b"\r\n" + request_line("a").replace(b"\n", b"\r\n") + b"\x00", 4),
        (request_line("a")[:-20], 1),
    ],
)
async def test_known_shapes_of_batch_files(
    served: Served, table: Bench, *, content: bytes, lines: int
) -> None:
    async def started(batch_id: str) -> None:
        await table.send(batch_id, PLAN)

    assert lines_of(content) == lines
    async with running(Engine(served.redis_url)):
        assert not await fuzz_checks.batch_complaints(served.http, content, started=started)


@seeded(100)
@given(content=batch_files())
async def test_the_commands_reader_loses_no_line(*, content: bytes) -> None:
    assert not fuzz_checks.reader_complaints(content)


@seeded(15)
@given(thing=IDS)
async def test_whatever_stands_where_an_id_belongs_is_refused_in_words(served: Served, *, thing: str) -> None:
    assert not await fuzz_checks.id_complaints(served.http, thing)


@seeded(30)
@given(last_id=LAST_EVENT_IDS, after=AFTER)
async def test_any_last_event_id_is_gone_on_after_or_refused(
    served: Served, ended_job: str, *, last_id: str, after: str
) -> None:
    assert not await fuzz_checks.event_complaints(served.http, ended_job, last_id=last_id, after=after)


@seeded(20)
@given(key=HEADER_TEXT)
async def test_any_idempotency_key_makes_one_job_or_is_refused(served: Served, *, key: str) -> None:
    assert not await fuzz_checks.key_complaints(served.http, key)
