"""A short form of `make chaos`: the walk runs, and its rules notice what is broken."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from api.cli.redis_server import find_binary
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.producer import Producer
from tests.broker.jobs import KEYS, submission
from tests.chaos import queue_rules
from tests.chaos.pair import Pair
from tests.chaos.queue_state import State
from tests.chaos.run import Options, walk

Break = Callable[["redis.Redis", str], object]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(find_binary(), tmp_path)
    yield pair
    pair.close()


def test_short_walk_keeps_the_rules(pair: Pair) -> None:
    counts = walk(pair, Options(steps=300, seed=1, servers=("found",), shrink=False))
    assert counts.total() >= 300
    assert counts["claim"] > 0


def test_replica_that_fell_behind_forgets_what_the_master_alone_knew(pair: Pair) -> None:
    pair.begin()
    pair.master.set("before", 1)
    pair.freeze()
    pair.master.set("after", 1)
    pair.fail_over()
    assert (pair.master.exists("before"), pair.master.exists("after")) == (1, 0)
    pair.begin()
    pair.master.set("later", 1)
    pair.fail_over()
    assert pair.master.exists("later") == 1


BREAKS: dict[str, Break] = {
    "no lease": lambda client, i: client.zrem(KEYS.named("leases"), i),
    "no deadline": lambda client, i: client.zrem(KEYS.named("deadlines"), i),
    "two places": lambda client, i: client.zadd(KEYS.named("ready:0"), {i: 1}),
    "unknown member": lambda client, _: client.zadd(KEYS.named("delayed"), {"nobody": 1}),
    "miscounted": lambda client, _: client.hincrby(KEYS.named("stats"), "claimed:0", 1),
    "cap miscounted": lambda client, _: client.hset(KEYS.named("running"), "acme", 2),
    "no request": lambda client, i: client.delete(KEYS.payload(i)),
    "leak": lambda client, _: client.set(KEYS.named("out:leak"), 1),
    "repaired": lambda client, _: client.hset(KEYS.named("stats"), "reconciled:queued_nowhere", 1),
}


@pytest.mark.parametrize("broken", BREAKS)
async def test_rules_notice(
    pipe: Pipe, producer: Producer, worker: Consumer, redis_url: str, *, broken: str
) -> None:
    job = submission(tenant="acme", tenant_cap=1)
    await producer.submit(job)
    await worker.claim(1)
    with redis.Redis.from_url(redis_url) as client:
        queue_rules.check_state(State.read(client))
        BREAKS[broken](client, job.job_id)
        with pytest.raises(AssertionError):
            queue_rules.check_state(State.read(client))
        client.flushall()


def test_ended_job_may_not_be_taken_back() -> None:
    job = {"status": "succeeded", "class": "0", "score": "1", "token": "5", "attempts": "1"}
    before, after = (
        State({"a": job | {"status": status}}, {}, {}, {}, {}) for status in ("succeeded", "queued")
    )
    with pytest.raises(AssertionError):
        queue_rules.check_moves(before, after, step="reap", now=0)
