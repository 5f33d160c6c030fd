"""A planted imbalance is named within 15 s; an even pool is left alone; the figures are those of the formulas."""

import re
from dataclasses import replace

import pytest

from broker.balance import Spread, judge, spread
from broker.fleet import LoadMeans, PoolView, WorkerRecord
from tests.workers.simulated_pool import Replica, SimulatedPool

NAMED_S = 15.0


@pytest.fixture
def pool() -> SimulatedPool:
    """Five workers that have run evenly for two minutes, a third of their slots busy."""
    even = SimulatedPool([Replica(f"w{number}") for number in range(1, 6)], jobs_per_s=3.3)
    even.run(120)
    return even


def test_an_even_pool_has_no_causes(pool: SimulatedPool) -> None:
    for _ in range(60):
        pool.run(5)
        assert pool.balance.causes == ()
    assert pool.balance.busy is not None
    assert pool.balance.busy.max_over_mean < 1.2
    assert not pool.balance.uneven


def test_a_worker_that_becomes_three_times_slower_is_named(pool: SimulatedPool) -> None:
    pool.replicas[2].tpot_s *= 3
    assert pool.named_after_s("w3", "slow", within_s=NAMED_S) <= NAMED_S
    pool.run(10)
    assert re.fullmatch(r"w3 is (2.9|3.[01])x slower per token than the others", pool.balance.why)
    assert pool.balance.uneven


def test_a_worker_that_gets_all_the_long_jobs_is_named(pool: SimulatedPool) -> None:
    while pool.replicas[4].ledger.free < 4:
        pool.run(0.5)
    for _ in range(4):
        pool.give(pool.replicas[4], 2, run_s=120.0, tokens=6000)
    assert pool.named_after_s("w5", "long_jobs", within_s=NAMED_S) <= NAMED_S
    assert "w5 holds 4 long P2 jobs (480 predicted s; a job of the others has 4 s)" in pool.balance.why
    assert pool.balance.most_loaded == "w5"


def test_an_imbalance_is_forgotten_soon_after_its_end(pool: SimulatedPool) -> None:
    pool.replicas[2].tpot_s *= 3
    pool.run(30)
    pool.replicas[2].tpot_s /= 3
    pool.run(30)
    assert pool.balance.causes == ()


def test_a_paused_worker_is_named_but_its_pool_is_not_uneven(pool: SimulatedPool) -> None:
    pool.replicas[0].state = "paused"
    pool.run(5)
    assert pool.balance.why == "w1 is paused"
    assert not pool.balance.uneven


def record(name: str, busy: int, slots: int = 8, **changes: object) -> WorkerRecord:
    means = LoadMeans(busy / slots, None, 0.0)
    values: dict[str, object] = {"state": "ready", "pid": 1, "host": "h", "lately": means, "minute": means}
    return WorkerRecord(name, "p", "e", "m", slots, busy, **(values | changes))  # type: ignore[arg-type]


def of(*records: WorkerRecord) -> PoolView:
    return PoolView("p", list(records), [0] * 4, 0, 0, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 0.5], Spread(1.0, 0.0, 1.0)),
        ([1.0, 0.0, 0.0, 0.0], Spread(4.0, 1.7321, 0.25)),
        ([0.5, 0.25, 0.75], Spread(1.5, 0.4082, 0.8571)),
        ([0.0, 0.0], None),
        ([], None),
    ],
)
def test_spread_is_max_over_mean_variation_and_jain(values: list[float], expected: Spread | None) -> None:
    assert spread(values) == expected


def test_one_at_ninety_percent_and_nine_at_thirty_is_uneven_and_says_who() -> None:
    shares = {f"w{number}": 30 for number in range(1, 10)} | {"w10": 90}
    found = judge(of(*(record(name, busy, slots=100) for name, busy in shares.items())))
    assert found.busy == spread([share / 100 for share in shares.values()])
    assert found.busy is not None
    assert found.busy.max_over_mean == 2.5
    assert (found.uneven, found.why) == (True, "w10 is 90% busy, the others 30%")
    assert found.most_loaded == "w10"


def test_workers_of_one_slot_are_busy_or_not_and_that_is_no_imbalance() -> None:
    assert not judge(of(record("w1", 1, slots=1), record("w2", 0, slots=1), record("w3", 0, slots=1))).uneven


def test_a_full_cache_among_empty_ones_is_named() -> None:
    full, half = LoadMeans(0.5, 0.95, 4.0), LoadMeans(0.5, 0.4, 4.0)
    found = judge(
        of(record("w1", 4, lately=half), record("w2", 4, lately=full), record("w3", 4, lately=half))
    )
    assert found.why == "the KV cache of w2 is 95% full, the others' 40%"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "unavailable"}, "w2 cannot reach its engine"),
        ({"breaker": "open"}, "w2 gets nothing, as too many of its requests failed"),
        ({"state": "draining"}, "w2 is draining"),
    ],
)
def test_who_gets_no_jobs_is_said(changes: dict[str, object], why: str) -> None:
    found = judge(of(record("w1", 2), record("w2", 0, **changes)))  # type: ignore[arg-type]
    assert (found.why, found.uneven, found.most_loaded) == (why, False, None)


def test_who_has_just_come_and_has_nothing_yet_makes_nobody_busy() -> None:
    seasoned = [record("w1", 63, slots=100), record("w2", 40, slots=100), record("w3", 40, slots=100)]
    joined = record("w4", 0, slots=100)
    assert judge(of(*seasoned, joined)).why == "w1 is 63% busy, the others 27%"
    assert judge(of(*seasoned, replace(joined, lately=None, minute=None))).causes == ()
