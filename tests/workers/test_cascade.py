"""A cascade: the small model's answer counts where its engine was sure of the first tokens, else the large one's."""

from functools import partial

import orjson
import pytest

from broker.heirs import Plan
from tests.workers.conftest import Maker
from tests.workers.pairs import Pair, Starts, says, start_pair, sure, text_of


@pytest.fixture
def pair(worker: Maker) -> Starts:
    return partial(start_pair, worker)


async def test_a_sure_first_pass_is_the_answer_and_an_unsure_one_is_stopped_and_handed_on(
    pair: Starts,
) -> None:
    plan = Plan(window=3, floor=0.8)
    workers: Pair = await pair(sure(-0.01, -0.02, -0.01, -3.0))
    job = await workers.ended(await workers.submit(plan=plan, body=b'{"messages":[]}'))
    assert (job.first, text_of(job)) == (None, "yesyesyesyes")
    assert job.confidence == pytest.approx(0.987, abs=0.001)
    assert b"logprobs" not in (job.result or b"")
    workers.small.engine.script = sure(-0.9, -0.9, -0.9, -0.01)
    job = await workers.ended(await workers.submit(plan=plan))
    assert job.first is not None
    assert (job.first.why, text_of(job)) == ("low_confidence", "from the large one")
    assert job.first.confidence == pytest.approx(0.407, abs=0.001)
    assert job.first.usage["completion_tokens"] == 3  # stopped at the verdict


async def test_a_short_answer_is_judged_at_its_end(pair: Starts) -> None:
    workers: Pair = await pair(sure(-0.9))
    job = await workers.ended(await workers.submit(plan=Plan(window=16, floor=0.8)))
    assert job.first is not None
    assert job.first.why == "low_confidence"


async def test_an_engine_that_gives_no_probabilities_is_believed(pair: Starts) -> None:
    workers: Pair = await pair(says("plain words"))
    job = await workers.ended(await workers.submit(plan=Plan(window=16, floor=0.8)))
    assert (job.first, text_of(job)) == (None, "plain words")


async def test_probabilities_that_the_caller_asked_for_are_left(pair: Starts) -> None:
    workers: Pair = await pair(sure(-0.01, -0.02))
    body = b'{"messages":[],"logprobs":true}'
    job = await workers.ended(await workers.submit(plan=Plan(window=2, floor=0.8), body=body))
    assert len(orjson.loads(job.result or b"")["choices"][0]["logprobs"]["content"]) == 2
