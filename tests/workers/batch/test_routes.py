"""Lines of a batch that name a route: handed on to the large pool as single jobs are, under the first job's id."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from broker.batch_record import BatchStatus
from broker.config import Config
from broker.errors import UnknownJob
from broker.feedback import keep_floors
from broker.settings import Settings
from tests.conditions import wait_until
from tests.workers.batch.rig import CONFIG, Bench, bench, request_line
from tests.workers.conftest import Maker
from tests.workers.pairs import Pair, Starts, says, start_pair, sure
from workers.batch.aim import Aim, aim
from workers.batch.lines import Flaw, Line, LineRules, Request

CHAT = "/v1/chat/completions"
FACT = {"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Peru?"}]}


def with_route(**route: Any) -> Config:
    """By default all goes to the small pool, whatever the model thinks of it."""
    named = {"name": "auto", "small": "small", "large": "large", "target": {"share_large": 0.0}} | route
    models = [model.model_dump() for model in CONFIG.models]
    return Config.model_validate({"models": models, "routes": [named]})


@pytest.fixture
def pair(worker: Maker) -> Starts:
    return partial(start_pair, worker)


@pytest.fixture
async def routed(settings: Settings) -> AsyncIterator[Bench]:
    async with bench(settings, with_route(cascade={"window": 2, "floor": 0.8})) as made:
        yield made


def lines(*names: str) -> bytes:
    return b"".join(request_line(name, body=FACT) for name in names)


def contents(output: list[dict[str, Any]]) -> list[str]:
    return [line["response"]["body"]["choices"][0]["message"]["content"].strip() for line in output]


async def test_lines_that_the_small_model_fails_are_answered_by_the_large_one(
    routed: Bench, pair: Starts
) -> None:
    workers: Pair = await pair(says(" "))
    outcome = await routed.ended(await routed.submit(lines("a", "b")))
    assert (outcome.batch.status, outcome.errors) == (BatchStatus.COMPLETED, [])
    assert contents(outcome.output) == ["from the large one"] * 2
    first_ids = [line["response"]["request_id"] for line in outcome.output]
    assert [name.endswith(".small") for name in first_ids] == [True, True]
    assert len(workers.large.engine.seen) == 2


async def test_records_of_both_passes_are_dropped_when_the_slice_is_done(routed: Bench, pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    outcome = await routed.ended(await routed.submit(lines("a")))
    (first,) = (line["response"]["request_id"] for line in outcome.output)

    async def are_gone() -> bool:
        try:
            await routed.means.producer.get(first)
        except UnknownJob:
            keys = await routed.means.pipe.command("KEYS", "hw:{large}:job:*")
            return not keys
        return False

    await wait_until(are_gone, what="both records are gone")
    assert len(workers.large.engine.seen) == 1


async def test_a_cascade_judges_lines_too(routed: Bench, pair: Starts) -> None:
    workers: Pair = await pair(sure(-0.01, -0.01, -0.01))
    outcome = await routed.ended(await routed.submit(lines("a")))
    assert contents(outcome.output) == ["yesyesyes"]
    workers.small.engine.script = sure(-1.0, -1.0, -1.0)
    outcome = await routed.ended(await routed.submit(lines("b")))
    assert contents(outcome.output) == ["from the large one"]


async def test_a_line_that_was_handed_on_is_cancelled_with_its_batch(routed: Bench, pair: Starts) -> None:
    workers: Pair = await pair(says(" "))
    workers.large.puller.heed("pause")
    batch = await routed.submit(lines("a"))

    async def waits() -> bool:
        return bool(await routed.means.pipe.command("ZCARD", "hw:{large}:ready:2"))

    await wait_until(waits, what="the successor waits in the large pool")
    await routed.means.batches.cancel(batch.batch_id)
    outcome = await routed.ended(batch)
    assert outcome.batch.status is BatchStatus.CANCELLED
    assert not await waits()
    assert workers.large.engine.seen == []


async def test_a_slice_that_is_done_again_finds_what_was_handed_on_and_asks_nobody_anew(
    settings: Settings, routed: Bench, pair: Starts
) -> None:
    workers: Pair = await pair(says(" "))
    workers.large.puller.heed("pause")
    async with bench(settings, with_route()) as first:
        batch = await first.submit(lines("a"))

        async def waits() -> bool:
            return bool(await first.means.pipe.command("ZCARD", "hw:{large}:ready:2"))

        await wait_until(waits, what="the successor waits in the large pool")
        first.means.stopping.set()
        await wait_until(lambda: bool(first.units.handed_back), what="the slice is handed back")
    await routed.send(batch.batch_id, "0")
    workers.large.puller.heed("resume")
    outcome = await routed.ended(batch)
    assert contents(outcome.output) == ["from the large one"]
    assert (len(workers.small.engine.seen), len(workers.large.engine.seen)) == (1, 1)


async def test_a_floor_that_feedback_has_taught_counts_for_lines(routed: Bench, pair: Starts) -> None:
    workers: Pair = await pair(sure(-0.01, -0.01, -0.01))
    await keep_floors(routed.means.pipe, {"auto fact": 0.999})
    outcome = await routed.ended(await routed.submit(lines("a")))
    assert contents(outcome.output) == ["from the large one"]
    assert len(workers.large.engine.seen) == 1


def test_a_route_that_does_not_escalate_hands_no_line_on() -> None:
    (route,) = with_route(escalate=False).routes
    found = aim(route, FACT, endpoint=CHAT, floors={})
    assert (found.pool, found.heir) == ("small", "")
    (route,) = with_route().routes
    assert aim(route, {"input": "x"}, endpoint="/v1/embeddings", floors={}) == Aim("small")


@pytest.mark.parametrize(("only", "may"), [({"small"}, False), ({"small", "large"}, True), ({"auto"}, True)])
def test_a_key_must_be_good_for_every_pool_that_a_line_may_come_to(only: set[str], may: bool) -> None:
    data = request_line("a", body=FACT).strip()
    rules = LineRules(CHAT, with_route(), only=frozenset(only))
    found = rules.check(Line(1, 0, len(data), data), repeated=False)
    assert isinstance(found, Request if may else Flaw)
