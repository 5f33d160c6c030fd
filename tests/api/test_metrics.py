"""Metrics: the same from any process, kept over restarts, bounded, named by Prometheus' rules, and described."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from api.metrics import catalogue, document
from api.metrics.family import Kind, Samples
from api.metrics.pools import add_books
from api.metrics.scrape import State, render
from api.metrics.tally import Tally, add_tally, read
from broker import accounts
from broker.accounts import Book, Used
from broker.config import Config, ModelConfig
from broker.connection import Pipe
from broker.errors import RedisAway
from broker.fleet import LoadMeans, PoolView, WorkerRecord
from broker.histograms import BOUNDS, READ, Histogram
from broker.job import ServiceClass
from broker.limits import Quota
from broker.settings import Settings
from broker.tenants import TenantConfig
from predictor.estimator import Speed
from predictor.lessons import Drift, Lessons
from predictor.timing import Timing
from tests.api.harness import ScriptedWorker, Served, chat, serve, whole_answer

P0 = ServiceClass.P0
Numbers = dict[tuple[str, ...], float]


def numbers(text: str) -> Numbers:
    """By name and labels' values, these in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(served: Served) -> Numbers:
    return numbers((await served.http.get("/metrics")).text)


def timeless(found: Numbers) -> Numbers:
    """Without what grows by itself between two looks."""
    return {name: value for name, value in found.items() if name[0] != catalogue.QUEUE_OLDEST.name}


@pytest.fixture
def tallies(monkeypatch: pytest.MonkeyPatch) -> list[Tally]:
    """Of the processes that a test starts. They flush when it says so."""
    made: list[Tally] = []

    async def silent(mine: Tally) -> None:
        made.append(mine)

    monkeypatch.setattr(Tally, "run", silent)
    return made


async def answered(served: Served, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(served.http.post("/v1/chat/completions", json=chat()))
    await worker.finish(await worker.claim(), whole_answer("ok"))
    assert (await asking).status_code == 200


async def test_four_processes_scraped_at_once_tell_the_same(
    settings: Settings, worker: ScriptedWorker, tallies: list[Tally]
) -> None:
    async with AsyncExitStack() as stack:
        four = [await stack.enter_async_context(serve(settings)) for _ in range(4)]
        for each in four:
            await answered(each, worker)
            assert (await each.http.get("/v1/jobs/nothing")).status_code == 404
        waiting = (await four[0].http.post("/v1/jobs", json=chat(**{"class": "P1"}))).json()["id"]
        for tally in tallies:
            await tally.flush()
        first, *others = await asyncio.gather(*map(scraped, four))
        assert all(timeless(found) == timeless(first) for found in others)
        assert first["headway_http_requests_total", "200", "/v1/chat/completions"] == 4
        assert first["headway_http_requests_total", "404", "/v1/jobs/{job_id}"] == 4
        assert first["headway_jobs_total", "P0", "small", "succeeded"] == 4
        assert first["headway_queue_jobs", "P1", "small"] == 1
        assert first["headway_redis_round_trip_seconds_count",] == 4
        assert len([name for name in first if name[0] == "headway_api_open_requests"]) == 4
        await four[0].http.delete(f"/v1/jobs/{waiting}")


async def test_a_process_that_restarts_goes_on_where_its_predecessor_stopped(
    settings: Settings, worker: ScriptedWorker, tallies: list[Tally]
) -> None:
    for total in (1, 2):
        async with serve(settings) as served:
            await answered(served, worker)
            await tallies[-1].flush()
            found = await scraped(served)
        assert found["headway_http_requests_total", "200", "/v1/chat/completions"] == total


async def test_a_flush_that_was_not_answered_for_counts_once(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally, run = Tally(pipe), pipe.run
    tally.count(catalogue.HTTP_REQUESTS, "/x", "200")

    async def applied_but_lost(call: object) -> None:
        await run(call)  # type: ignore[arg-type]
        raise RedisAway("the answer is lost")

    monkeypatch.setattr(pipe, "run", applied_but_lost)
    await tally.flush()
    tally.count(catalogue.HTTP_REQUESTS, "/x", "200")
    monkeypatch.setattr(pipe, "run", run)
    await tally.flush()
    await tally.flush()
    assert (await read(pipe))[0]["headway_http_requests_total|/x|200"] == 2


LIMITED = TenantConfig(name="small", keys=(SecretStr("key"),), limits=Quota(requests_per_minute=1))
OPERATOR = TenantConfig(name="operator", keys=(SecretStr("operator"),), admin=True)


@pytest.fixture
async def limited(redis_url: str, tallies: list[Tally]) -> AsyncIterator[Served]:
    assert tallies == []
    config = Config(models=(ModelConfig(pool="small"),), tenants=(LIMITED, OPERATOR))
    async with serve(Settings(redis_url=redis_url), config=config) as running:
        running.http.headers["authorization"] = "Bearer key"
        yield running


async def test_refusals_are_counted_by_their_reason(
    limited: Served, worker: ScriptedWorker, tallies: list[Tally]
) -> None:
    await answered(limited, worker)
    assert (await limited.http.post("/v1/chat/completions", json=chat())).status_code == 429
    await worker.announce("draining")
    await limited.fresh()
    assert (await limited.http.post("/v1/chat/completions", json=chat())).status_code == 503
    await tallies[0].flush()
    found = await scraped(limited)
    refused = {name[2:]: value for name, value in found.items() if name[0] == "headway_refusals_total"}
    assert refused == {("small", "rate_limit_exceeded"): 1, ("small", "no_worker"): 1}


def everything() -> bytes:
    """A scrape in which everything has happened."""
    lately = LoadMeans(0.9, 0.5, 100.0)
    others = [
        WorkerRecord(
            f"w{n}", "p", "e", "m", 8, 1, "ready", 1, "h", kv_used_share=0.5, tpot_s=0.01, minute=lately
        )
        for n in (1, 2)
    ]
    slow = WorkerRecord(
        "w3", "p", "e", "m", 8, 8, "ready", 1, "h", kv_used_share=0.5, tpot_s=0.1, lately=lately
    )
    words = ("reconciled:queued_nowhere", "handed_on:low_confidence", "judged:escalated")
    view = PoolView("p", [*others, slow], [1, 0, 0, 0], 0, 0, 0, counters=dict.fromkeys(words, 1.0))
    times = {what: Histogram(bounds, (1,) * (len(bounds) + 1), 9.0) for what, bounds in BOUNDS.items()}
    reading, by_class = times.pop(READ), {(what, P0): each for what, each in times.items()}
    used = {("t", P0): Used(1, 1, 5, 7, 2, 10**6, 10**9)}
    tallied = catalogue.TALLIED.items()
    return render(
        State(
            [(view, [1.0, None, None, None])],
            {"p": Lessons(Timing.start(Speed()), drift=Drift(0.1, 0.2))},
            {"p": Book(used, by_class, reading)},
            {"|".join([name, *(family.labels or "0")]): 1 for name, family in tallied},
            {"api-1": {"lag_s": 0.1, "requests": 1, "memory": 1, "cpu_s": 1}},
        )
    )


def test_every_metric_of_the_catalogue_is_filled_with_the_labels_that_it_names() -> None:
    found = list(text_string_to_metric_families(everything().decode()))
    declared = {family.name.removesuffix("_total"): family for family in catalogue.ALL}
    assert {family.name for family in found} == set(declared)
    for family in found:
        assert (family.type, family.documentation) == (declared[family.name].kind, declared[family.name].help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(declared[family.name].labels)


def test_names_follow_prometheus_rules() -> None:
    """https://prometheus.io/docs/practices/naming/: base units, `_total` for counters and for nothing else."""
    for family in catalogue.ALL:
        assert re.fullmatch(r"headway_[a-z0-9]+(_[a-z0-9]+)*", family.name)
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER), family.name
        assert not re.search(r"_(ms|milliseconds|us|kb|mb|percent|minutes|hours)(_|$)", family.name)
        assert family.kind is not Kind.HISTOGRAM or family.name.endswith("_seconds")
        assert not {"le", "quantile", "instance", "job"} & set(family.labels)


def test_no_name_is_taken_twice() -> None:
    names = [family.name for family in catalogue.ALL]
    assert len(names) == len(set(names))


def test_the_document_is_what_the_code_says() -> None:
    assert document.TARGET.read_text("utf-8") == document.render(), "run `make docs`"


def test_tenants_are_bounded_and_none_is_lost() -> None:
    used = {(f"t{n:02}", P0): Used(requests=1, gpu_us=n * 10**6) for n in range(1, 31)}
    samples = Samples()
    add_books(samples, {"p": Book(used)})
    found = numbers(samples.text().decode())
    seconds = {name[3]: value for name, value in found.items() if name[0] == "headway_gpu_seconds_total"}
    assert len(seconds) == catalogue.MOST_TENANTS + 1
    assert seconds["t30"] == 30
    assert seconds[catalogue.OTHER] == sum(range(1, 11))


def test_a_tenant_that_is_no_operator_sees_no_other_ones_name() -> None:
    book = Book({(name, P0): Used(requests=1, gpu_us=10**6) for name in ("mine", "theirs", "others")})
    samples = Samples()
    add_books(samples, {"p": book}, only="mine")
    found = numbers(samples.text().decode())
    assert {name[3] for name in found if name[0] == "headway_gpu_seconds_total"} == {"mine", catalogue.OTHER}


async def test_who_may_be_named_is_decided_by_the_callers_key(limited: Served, pipe: Pipe) -> None:
    await pipe.run(
        accounts.flush("small", "w", number=1, sums={("t", f"requests|0|{n}"): 1 for n in ("small", "rival")})
    )
    await accounts.note_queue(pipe, "small")
    seen = {}
    for key in ("key", "operator"):
        text = (await limited.http.get("/metrics", headers={"authorization": f"Bearer {key}"})).text
        seen[key] = {name for name in ("small", "rival") if f'tenant="{name}"' in text}
    assert seen == {"key": {"small"}, "operator": {"small", "rival"}}


def test_histograms_are_cumulative_and_end_with_infinity() -> None:
    samples = Samples()
    add_tally(
        samples,
        {f"{catalogue.LOOP_LAG.name}|{bucket}": n for bucket, n in (("0", 3), ("2", 1), ("11", 2))}
        | {f"{catalogue.LOOP_LAG.name}|us": 2_500_000, "headway_of_a_newer_version_total|x": 1},
    )
    found = numbers(samples.text().decode())
    name = catalogue.LOOP_LAG.name
    assert [found[f"{name}_bucket", le] for le in ("0.001", "0.0025", "0.005", "5.0", "+Inf")] == [
        3,
        3,
        4,
        4,
        6,
    ]
    assert (found[f"{name}_count",], found[f"{name}_sum",]) == (6, 2.5)
