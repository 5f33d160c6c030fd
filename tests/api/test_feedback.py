"""What callers say of answers: counted once, kept without text, and used for the next verdict."""

from collections.abc import AsyncIterator

import pytest

from broker import feedback
from broker.heirs import Plan
from broker.keys import FEEDBACK
from broker.scripts import Ending
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, serve, whole_answer
from tests.api.routed import Route, ask, config, routed, submitted


@pytest.fixture
async def route(settings: Settings) -> AsyncIterator[Route]:
    async with routed(settings) as running:
        yield running


async def test_feedback_counts_once_and_is_kept_without_a_word_of_the_prompt(route: Route) -> None:
    document = (
        await route.served.http.post("/v1/jobs", json={**ask("Who wrote Emma?"), "class": "P1"})
    ).json()
    path = f"/v1/jobs/{document['id']}/feedback"
    assert (await route.served.http.post(path, json={"rating": "good"})).status_code == 409
    lease = await route.small.claim()
    ending = Ending(True, whole_answer("Jane Austen"), 3, 2, confidence=0.91)
    await route.small.consumer.finish(lease, ending)
    counted = [
        (await route.served.http.post(path, json={"rating": rating})).json()["counted"]
        for rating in ("good", "bad")
    ]
    assert counted == [True, False]
    outcome = (await feedback.latest(route.served.pipe, 10))[0]
    assert (outcome.route, outcome.pool, outcome.good, outcome.confidence) == ("auto", "small", True, 0.91)
    raw = str(await route.served.pipe.command("XRANGE", FEEDBACK, "-", "+"))
    assert "Emma" not in raw
    assert "Austen" not in raw


async def test_feedback_needs_no_content_type(route: Route) -> None:
    document = await submitted(route.served, ask())
    path = f"/v1/jobs/{document['id']}/feedback"
    answer = await route.served.http.post(path, content=b'{"rating": "good"}')
    assert answer.status_code == 200


async def test_feedback_that_is_neither_good_nor_bad_is_refused(route: Route) -> None:
    document = await submitted(route.served, ask())
    answer = await route.served.http.post(f"/v1/jobs/{document['id']}/feedback", json={"rating": "so so"})
    assert answer.status_code == 400
    assert '{"rating": "good"}' in answer.json()["error"]["message"]
    gone = await route.served.http.post("/v1/jobs/job_x/feedback", json={"rating": "good"})
    assert gone.status_code == 404


async def test_a_cascade_asks_for_a_verdict_only_where_confidence_means_something(
    settings: Settings, redis_url: str
) -> None:
    named = config(target={"share_large": 0.0}, cascade={"types": ["fact"], "window": 8, "floor": 0.6})
    async with serve(settings, config=named) as served:
        workers = [await ScriptedWorker.join(redis_url, pool) for pool in ("small", "large")]
        for text, window in (("What is the capital of France?", 8), ("Write a poem about rain", 0)):
            await served.http.post("/v1/jobs", json={**ask(text), "class": "P1"})
            lease = await workers[0].claim()
            plan = Plan.parse(lease.plan)
            assert (plan.window, plan.floor) == ((window, 0.6) if window else (0, 0.0))
            await workers[0].finish(lease, whole_answer("x"))
        for worker in workers:
            await worker.close()


async def test_a_floor_that_feedback_taught_is_used(settings: Settings, redis_url: str) -> None:
    named = config(target={"share_large": 0.0}, cascade={"types": ["fact"], "window": 8, "floor": 0.6})
    async with serve(settings, config=named) as served:
        workers = [await ScriptedWorker.join(redis_url, pool) for pool in ("small", "large")]
        await feedback.keep_floors(served.pipe, {"auto fact": 0.77})
        await served.http.post("/v1/jobs", json={**ask("What is the capital of France?"), "class": "P1"})
        lease = await workers[0].claim()
        assert Plan.parse(lease.plan).floor == 0.77
        await workers[0].finish(lease, whole_answer("Paris"))
        for worker in workers:
            await worker.close()
