"""What a job's document tells of it: every step in order, why a worker took it, and forecasts beside what came."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from api import story
from broker import scripts
from broker.job import Forecast, JobView, ServiceClass, Status
from broker.policy import Asking, Limits, Room
from broker.record import Attempt
from tests.api.harness import ScriptedWorker, Served, chat, whole_answer

JOB = JobView(
    job_id=f"job_{'a' * 26}.small",
    status=Status.SUCCEEDED,
    service_class=ServiceClass.P2,
    endpoint="/v1/chat/completions",
    tenant="default",
    forecast=Forecast(40, 100, 2.0),
    attempts=1,
    errors=0,
    deaths=0,
    worker="w2",
    created=100.0,
    deadline=160.0,
    claimed=112.0,
    first_token=112.5,
    finished=114.0,
    usage={"prompt_tokens": 42, "completion_tokens": 133, "cached_tokens": 12},
    metadata=b"",
    claim="haw3",
    promoted=110.0,
    level=1,
)


def test_a_story_is_in_order_and_says_where_the_time_went() -> None:
    earlier = [
        Attempt(104.0, 101.0, "w1", "h", "preempt"),
        Attempt(108.0, 105.0, "w1", "s", "error", {"code": "engine_broken"}),
    ]
    told = story.story(JOB, [earlier])
    assert [(each["at"], each["event"]) for each in told] == [
        (100.0, "admitted"),
        (100.0, "forecast"),
        (100.0, "queued"),
        (101.0, "claimed"),
        (104.0, "preempted"),
        (105.0, "claimed"),
        (108.0, "engine_error"),
        (110.0, "promoted"),
        (112.0, "claimed"),
        (112.5, "first_token"),
        (114.0, "succeeded"),
    ]
    details = {each["event"]: each["detail"] for each in told}
    assert details["engine_error"] == "after 3 s on w1: engine_broken"
    assert details["promoted"] == "to the level of P1"
    assert details["first_token"] == "500 ms after the claim"
    assert details["succeeded"] == "after 2 s, 42 tokens in (12 of them cached), 133 out"


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (
            "unsure",
            "not good enough (unsure): large takes over, 42 tokens in (12 of them cached), 133 out",
        ),
        (
            "pool_out",
            "nobody serves it: large takes over, 42 tokens in (12 of them cached), 133 out",
        ),
    ],
)
def test_the_story_of_an_escalated_job_has_both_passes_under_the_first_ones_admission(
    why: str, words: str
) -> None:
    first = replace(JOB, status=Status.ESCALATED, finished=114.0, heir=f"job_{'a' * 26}.large", why=why)
    heir = replace(
        JOB, job_id=first.heir, earlier=(first,), created=114.0, claimed=115.0, promoted=None, first_token=None,
        finished=120.0,
    )  # fmt: skip
    told = story.story(heir, [[], []])
    assert [each["event"] for each in told].count("admitted") == 1
    assert [each["event"] for each in told][-5:] == [
        "escalated",
        "forecast",
        "queued",
        "claimed",
        "succeeded",
    ]
    assert [each["detail"] for each in told if each["event"] == "escalated"] == [words]


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("h", "from its own queue"),
        ("sa", "from another shard, as its own had nothing; it had been promoted"),
        ("ew3", "from another pool that it serves; its prefix is warm there, 1,024 tokens or more of it"),
        ("hm1kp", "from its own queue; its prefix is warm on another worker, which had no room for it; "
                  "which kept room for it; as a probe of the worker's breaker"),
        ("", ""),
    ],
)  # fmt: skip
def test_why_a_worker_took_a_job_is_said_in_words(claim: str, words: str) -> None:
    assert story.claim_words(claim) == words


def test_forecasts_stand_beside_what_came() -> None:
    assert story.forecasts(JOB) == {
        "wait_s": {"predicted": None, "actual": 12.0},
        "run_s": {"predicted": 2.0, "actual": 2.0},
        "prompt_tokens": {"predicted": 40, "actual": 42},
        "output_tokens": {"predicted": 100, "actual": 133},
    }
    waiting = replace(JOB, status=Status.QUEUED, claimed=None, finished=None, usage={})
    assert story.forecasts(waiting, start_s=3.0)["wait_s"] == {"predicted": 3.0, "actual": None}
    assert story.forecasts(waiting)["run_s"]["actual"] is None


async def told(served: Served, job_id: str) -> dict[str, Any]:
    document: dict[str, Any] = (await served.http.get(f"/v1/jobs/{job_id}")).json()
    return document


async def test_a_job_tells_of_every_attempt_that_did_not_end_it(
    served: Served, worker: ScriptedWorker
) -> None:
    job = (await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}))).json()
    for reason in ("preempt", "busy", "error"):
        lease = await worker.claim()
        given = scripts.Return(reason, error=b'{"message":"no","code":"c"}' if reason == "error" else b"")
        await worker.consumer.release(lease, given)
    waiting = await told(served, job["id"])
    assert [each["ended"] for each in waiting["attempts"]["history"]] == [
        "preempted",
        "engine_busy",
        "engine_error",
    ]
    await worker.finish(await worker.claim(), whole_answer("ok"))
    document = await told(served, job["id"])
    steps = [
        "claimed",
        "preempted",
        "claimed",
        "engine_busy",
        "claimed",
        "engine_error",
        "claimed",
        "succeeded",
    ]
    assert [each["event"] for each in document["story"]] == ["admitted", "forecast", "queued", *steps]
    assert document["attempts"]["history"][2]["error"] == {"message": "no", "code": "c"}
    assert document["forecast"]["output_tokens"]["actual"] == 2
    assert document["story"][3]["detail"] == "by scripted-small: from its own queue"


async def test_what_a_claim_saw_is_what_the_story_says(served: Served, worker: ScriptedWorker) -> None:
    """A warm prefix of at least 2 KB, and a shard that is not the worker's own."""
    long = {"messages": [{"role": "system", "content": "rule " * 500}, {"role": "user", "content": "hi"}]}
    ids = [
        (await served.http.post("/v1/jobs", json={"model": "small", "class": "P1", **long})).json()["id"]
        for _ in range(2)
    ]
    await worker.finish(await worker.claim(), whole_answer("ok"))
    asking = Asking("scripted-small", Limits().lease_s)
    rows = (await served.pipe.run(scripts.claim("small", asking, room=Room(4), away=1)))[2:]
    assert [row[0].decode() for row in rows] == ids[1:]
    details = [
        [each["detail"] for each in (await told(served, job_id))["story"] if each["event"] == "claimed"]
        for job_id in ids
    ]
    assert details == [
        ["by scripted-small: from its own queue"],
        ["by scripted-small: from another shard, as its own had nothing; its prefix is warm there, "
         "512 tokens or more of it"],
    ]  # fmt: skip
    await asyncio.gather(*(served.http.delete(f"/v1/jobs/{job_id}") for job_id in ids))
