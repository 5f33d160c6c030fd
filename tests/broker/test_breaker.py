"""A worker whose engine fails too often is given nothing, then single jobs, then all: on the real scripts with a virtual clock."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from broker import scripts
from broker.job import ServiceClass, heir_id
from broker.keys import PoolKeys
from broker.policy import Asking, Breaker, Limits, Order, Room
from broker.scripts import Ending, Return
from tests.broker.jobs import ERROR, KEYS, POOL, submission
from tests.broker.test_starvation import VirtualQueue

RULE = Breaker(share=0.1, requests=20, window_s=60.0, open_s=10.0, probes=3)
LIMITS = Limits(max_errors=3, breaker=RULE)
DONE = Ending(succeeded=True, data=b"")
HEIR = heir_id(f"job_{'0' * 26}.x", "large")


class Pool(VirtualQueue):
    """One pool on a clock of its own."""

    @property
    def db(self) -> Any:
        """Answers in bytes."""
        return self.client

    def add(self, n: int = 1) -> None:
        for _ in range(n):
            self.run(scripts.enqueue(submission(deadline_s=1e6), Order()))

    def claim_rows(self, worker: str = "w", slots: int = 1, **room: int) -> list[tuple[str, int]]:
        asked = scripts.claim(POOL, Asking(worker), room=Room(slots, **room))
        self.more, self.due_ms, *rows = self.run(asked)
        return [(row[0].decode(), row[1]) for row in rows]

    def succeed(self, lease: tuple[str, int]) -> None:
        self.run(scripts.finish_many([(*lease, DONE)], RULE))

    def fail(self, lease: tuple[str, int], reason: str = "error") -> None:
        self.run(scripts.release(*lease, given=Return(reason, error=ERROR), limits=LIMITS))

    def work(self, *outcomes: bool, worker: str = "w") -> None:
        """A job of its own for each: true if it passes."""
        for passes in outcomes:
            self.add()
            [lease] = self.claim_rows(worker)
            (self.succeed if passes else self.fail)(lease)
            self.clear()

    def clear(self) -> None:
        for name in ("delayed", "ready:0"):
            for job_id in self.db.zrange(KEYS.named(name), 0, -1):
                self.run(scripts.cancel(job_id.decode()))

    def open(self, worker: str = "w") -> None:
        self.work(*[True] * 17, *[False] * 3, worker=worker)
        assert self.state(worker) == "open"

    def state(self, worker: str = "w") -> str:
        return (self.db.hget(KEYS.breaker(worker), "state") or b"closed").decode()

    def events(self) -> dict[str, int]:
        stats = self.db.hgetall(KEYS.named("stats"))
        return {k.decode()[8:]: int(v) for k, v in stats.items() if k.startswith(b"breaker:")}


@pytest.fixture
def pool(redis_url: str) -> Iterator[Pool]:
    with redis.Redis.from_url(redis_url) as client:
        pool = Pool(client, now_s=1e6)
        yield pool
        pool.now_s += 1e6
        for name in ("deadlines", "aging"):
            for job_id in client.zrange(KEYS.named(name), 0, -1):
                pool.run(scripts.cancel(job_id.decode()))
        client.delete("hw:test:clock")


def test_opens_when_more_than_the_share_of_enough_requests_failed(pool: Pool) -> None:
    pool.work(*[True] * 18, False, False)
    assert pool.state() == "closed", "10 percent is not more than 10 percent"
    pool.work(False)
    assert (pool.state(), pool.events()) == ("open", {"opened": 1})


def test_few_requests_open_nothing(pool: Pool) -> None:
    pool.work(*[False] * 19)
    assert pool.state() == "closed"
    pool.work(False)
    assert pool.state() == "open"


def test_old_errors_leave_the_window(pool: Pool) -> None:
    pool.work(*[True] * 10, *[False] * 9)
    pool.now_s += 70
    pool.work(*[True] * 19, False)
    assert pool.state() == "closed"


def test_open_worker_gets_nothing_and_is_told_when_to_ask_again(pool: Pool) -> None:
    pool.open()
    pool.add(2)
    pool.now_s += 4
    assert pool.claim_rows(slots=4) == []
    assert (pool.more, pool.due_ms) == (4, 6000)
    assert pool.db.zcard(KEYS.named("marker")), "the others are woken for what it leaves"
    assert len(pool.claim_rows("other", slots=4)) == 2


def test_nobody_leaves_a_job_to_an_open_worker_for_its_prefix(pool: Pool) -> None:
    prefixed = {"prefix": "a1,b2", "deadline_s": 1e6}
    pool.run(scripts.enqueue(submission(**prefixed), Order()))
    [lease] = pool.claim_rows("w")
    pool.succeed(lease)
    pool.open("w")
    pool.db.zadd(KEYS.named("workers"), {"w": 2e9 + pool.now_s * 1000})
    pool.run(scripts.enqueue(submission(**prefixed), Order()))
    assert len(pool.claim_rows("other", slots=4)) == 1


def test_half_open_lets_one_job_through_at_a_time_until_enough_have_passed(pool: Pool) -> None:
    pool.open()
    pool.add(5)
    pool.now_s += 10.1
    for _ in range(RULE.probes):
        [lease] = pool.claim_rows(slots=4)
        assert pool.state() == "half-open"
        assert pool.claim_rows(slots=4) == [], "one probe at a time"
        assert pool.more == 4
        pool.succeed(lease)
    assert pool.state() == "closed"
    assert len(pool.claim_rows(slots=4)) == 2
    assert pool.events() == {"opened": 1, "probes": 3, "closed": 1}


def test_probe_that_fails_opens_for_twice_as_long(pool: Pool) -> None:
    pool.open()
    for open_s in (10, 20, 40):
        pool.now_s += open_s - 0.1
        pool.add()
        assert pool.claim_rows() == []
        pool.now_s += 0.2
        [lease] = pool.claim_rows()
        pool.fail(lease)
        assert pool.state() == "open"
        pool.clear()
    assert pool.events()["opened"] == 4


@pytest.mark.parametrize(
    "end", ["cancelled", "busy", "drain", "preempt", "rejected", "worker died", "expired"]
)
def test_probe_that_proves_nothing_makes_room_for_the_next(pool: Pool, end: str) -> None:
    """So nothing keeps it half-open."""
    pool.open()
    pool.now_s += 10.1
    pool.add()
    [lease] = pool.claim_rows()
    if end == "cancelled":
        pool.run(scripts.cancel(lease[0]))
    elif end == "rejected":
        pool.run(scripts.finish_many([(*lease, Ending(succeeded=False, data=ERROR))], RULE))
    elif end == "worker died":
        pool.now_s += 10.1
        pool.run(scripts.reap(POOL, LIMITS))
    elif end == "expired":
        pool.db.hset(KEYS.job(lease[0]), "deadline", 1)
        pool.db.zadd(KEYS.named("deadlines"), {lease[0]: 1})
        pool.run(scripts.reap(POOL, LIMITS))
    else:
        pool.fail(lease, end)
    pool.add()
    assert len(pool.claim_rows()) == 1
    assert pool.state() == "half-open"


def test_probe_without_an_end_does_not_keep_the_others_out(pool: Pool) -> None:
    pool.open()
    pool.add(2)
    pool.now_s += 10.1
    [first] = pool.claim_rows()
    assert pool.claim_rows() == []
    assert 0 < pool.due_ms <= 10_000
    pool.now_s += pool.due_ms / 1000
    [second] = pool.claim_rows()
    assert second != first
    for lease in (second, first):
        pool.succeed(lease)
    assert pool.db.hget(KEYS.breaker("w"), "good") == b"2"


def test_clock_that_was_put_back_opens_for_no_longer(pool: Pool) -> None:
    pool.open()
    pool.now_s -= 86_400
    pool.add()
    assert len(pool.claim_rows()) == 1


def test_mistakes_of_callers_cancellations_and_busy_answers_open_nothing(pool: Pool) -> None:
    for number in range(200):
        pool.add()
        [lease] = pool.claim_rows()
        match number % 5:
            case 0:
                pool.run(scripts.finish_many([(*lease, Ending(succeeded=False, data=ERROR))], RULE))
            case 1:
                pool.run(scripts.cancel(lease[0]))
            case 2 | 3 | 4:
                pool.fail(lease, ("busy", "drain", "preempt")[number % 5 - 2])
        pool.clear()
    assert pool.state() == "closed"
    assert not pool.db.keys(KEYS.named("brk:*")), "they do not make errors rarer either"


def test_request_that_fails_everywhere_is_put_down_to_its_first_worker_only(pool: Pool) -> None:
    for _ in range(20):
        pool.add()
        [lease] = pool.claim_rows("first")
        pool.fail(lease)
        [lease] = pool.claim_rows("second")
        pool.fail(lease)
        pool.clear()
    assert (pool.state("first"), pool.state("second")) == ("open", "closed")


@pytest.mark.parametrize(("why", "state"), [("engine_error", "open"), ("engine_rejected", "closed")])
def test_engines_errors_count_also_where_the_job_was_handed_on(pool: Pool, why: str, state: str) -> None:
    for _ in range(20):
        pool.add()
        [lease] = pool.claim_rows()
        pool.run(scripts.finish_many([(*lease, Ending(succeeded=False, data=b"", heir=HEIR, why=why))], RULE))
    assert pool.state() == state


def test_counts_expire_and_a_rule_of_zero_counts_nothing(pool: Pool) -> None:
    pool.work(True, False)
    keys = pool.db.keys(KEYS.named("brk:*"))
    assert keys
    assert all(0 < pool.db.ttl(key) <= 120 for key in keys)
    never = Limits(breaker=Breaker(share=0.0))
    for _ in range(40):
        pool.add()
        [lease] = pool.claim_rows("v")
        pool.run(scripts.release(*lease, given=Return("error", error=ERROR), limits=never))
        pool.clear()
    assert pool.state("v") == "closed"


def test_engine_with_15_percent_errors_is_out_within_its_window_and_the_pool_below_1_percent(
    pool: Pool,
) -> None:
    """Four workers of a request a second each, five minutes; one of them is bad."""
    chance, opened_at, errors, requests = random.Random(7), None, 0, 0
    for second in range(300):
        for worker in ("bad", "b", "c", "d"):
            pool.add()
            leases = pool.claim_rows(worker)
            failed = bool(leases) and worker == "bad" and chance.random() < 0.15
            for lease in leases:
                (pool.fail if failed else pool.succeed)(lease)
            counted = second >= 60
            requests, errors = requests + counted * len(leases), errors + counted * failed
            pool.clear()
        if opened_at is None and pool.state("bad") == "open":
            opened_at = second
        pool.now_s += 1
    assert opened_at is not None
    assert opened_at <= 60
    assert errors / requests < 0.01
    assert {pool.state(worker) for worker in "bcd"} == {"closed"}


def test_service_class_of_a_probe_is_what_is_first_in_the_queue(pool: Pool) -> None:
    pool.open()
    pool.now_s += 10.1
    for service_class in (ServiceClass.P2, ServiceClass.P0):
        pool.run(scripts.enqueue(submission(service_class=service_class, deadline_s=1e6), Order()))
    [lease] = pool.claim_rows(slots=4)
    assert pool.db.hget(PoolKeys(POOL).job(lease[0]), "class") == b"0"
