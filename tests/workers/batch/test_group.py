"""Lines go into the queue in bulk; a queue that takes no more makes them wait, and none of them is lost or refused."""

from collections.abc import Sequence

import pytest

from broker.batch_record import BatchStatus
from broker.class_limits import ClassConfig
from broker.config import Config, ModelConfig
from broker.errors import LimitReached, RedisAway
from broker.job import Accepted, Forecast, Lease, ServiceClass, Submission, new_job_id
from broker.producer import Producer
from broker.scripts import Ending
from broker.settings import Settings
from broker.tenants import TenantConfig
from tests.conditions import wait_until
from tests.workers.batch.rig import CONFIG, Bench, Engine, bench, each_once, request_lines
from workers.batch.group import fitting

P2 = ServiceClass.P2
SMALL = ModelConfig(pool="small")


def job(run_s: float = 1.0) -> Submission:
    return Submission(new_job_id("small"), P2, "/v1/completions", b"{}", Forecast(1, 1, run_s))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lines each call had."""
    found: list[int] = []
    submit = Producer.submit_bulk

    async def noting(self: Producer, jobs: Sequence[Submission]) -> list[Accepted]:
        found.append(len(jobs))
        return await submit(self, jobs)

    monkeypatch.setattr(Producer, "submit_bulk", noting)
    return found


async def waiting(table: Bench) -> int:
    return int(await table.means.pipe.command("HGET", "hw:{small}:stats", "queued:2") or 0)


async def test_lines_of_a_window_go_in_one_call(
    settings: Settings, held_engine: Engine, sizes: list[int]
) -> None:
    wide = settings.model_copy(update={"slice_lines": 300, "batch_window": 300})
    async with bench(wide) as table:
        batch = await table.submit(request_lines(300))

        async def all_wait() -> bool:
            return await waiting(table) == 300

        await wait_until(all_wait, what="all lines in the queue")
        assert len(sizes) <= 30, sizes
        held_engine.hold.set()
        assert each_once((await table.ended(batch)).answered, 300)


@pytest.mark.parametrize("limit", [ClassConfig(max_queued=3), ClassConfig(max_queued_s=16.0)])
async def test_full_class_makes_the_feeder_wait_and_no_line_is_lost(
    settings: Settings, held_engine: Engine, *, limit: ClassConfig
) -> None:
    """A line is predicted to run for 5.12 seconds and a bit: three of them fit into 16."""
    wide = settings.model_copy(update={"batch_window": 8, "predictor": "simple"})
    held_engine.slots = 2
    async with bench(wide, Config(models=(SMALL,), classes={"P2": limit})) as table:
        batch = await table.submit(request_lines(25))

        async def full() -> bool:
            return await waiting(table) == 3

        await wait_until(full, what="as many lines as there is room for")
        held_engine.hold.set()
        highest = 0
        while not (await table.get(batch)).status.terminal:
            highest = max(highest, await waiting(table))
        outcome = await table.ended(batch)
    assert each_once(outcome.answered, 25)
    assert (outcome.batch.failed, outcome.errors) == (0, [])
    assert highest <= 3
    assert set(held_engine.asked.values()) == {1}


async def test_batch_that_waits_for_room_can_be_cancelled(settings: Settings, held_engine: Engine) -> None:
    config = Config(models=(SMALL,), classes={"P2": ClassConfig(max_queued=1)})
    async with bench(settings, config) as table:
        other = job()
        await table.means.producer.submit(other)
        batch = await table.submit(request_lines(5))
        await wait_until(lambda: "0" in table.sent, what="the slice is at work")
        await table.means.batches.cancel(batch.batch_id)
        outcome = await table.ended(batch)
        assert outcome.batch.status is BatchStatus.CANCELLED
        assert await waiting(table) == 1, "the other one's job"
        await table.means.producer.cancel(other.job_id)


async def test_lines_have_their_batchs_tenant_and_its_cap(settings: Settings, engine: Engine) -> None:
    tenant = TenantConfig(name="acme", sha256=("0" * 64,), weight=2.0, max_running=1)
    seen = set()

    async with bench(settings, Config(models=CONFIG.models, tenants=(tenant,))) as table:
        answer = engine.answer

        def note(lease: Lease) -> Ending:
            seen.add(lease.tenant)
            return answer(lease)

        engine.answer = note
        batch = await table.submit(request_lines(12), tenant="acme")
        outcome = await table.ended(batch)
    assert each_once(outcome.answered, 12)
    assert seen == {"acme"}
    assert engine.most_leased == 1


async def test_lines_wait_out_a_redis_that_is_away(
    table: Bench, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, failures = Producer.submit_bulk, iter(range(3))

    async def failing(self: Producer, jobs: Sequence[Submission]) -> list[Accepted]:
        if next(failures, None) is not None:
            raise RedisAway("not now")
        return await submit(self, jobs)

    monkeypatch.setattr(Producer, "submit_bulk", failing)
    assert each_once((await table.ended(await table.submit(request_lines(20)))).answered, 20)


def test_as_many_lines_are_offered_as_there_is_room_for() -> None:
    jobs = [job(run_s) for run_s in (2.0, 3.0, 4.0)]
    counts = LimitReached("small", "P2", unit="jobs", waiting=5, most=7)
    assert fitting(jobs, counts) == jobs[:2]
    assert fitting(jobs, LimitReached("small", "P2", unit="jobs", waiting=9, most=7)) == []
    assert fitting(jobs, LimitReached("small", "P2", unit="s", waiting=4.0, most=9.0)) == jobs[:2]
    assert fitting(jobs, LimitReached("small", "P2", unit="s", waiting=4.0, most=5.0)) == []
    assert fitting(jobs, LimitReached("small", "P2", unit="s", waiting=0.0, most=1.0)) == jobs[:1]
