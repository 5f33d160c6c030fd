"""A worker's means over the last seconds: what is counted, over which span, and what is not known."""

import pytest

from broker.fleet import LoadMeans
from tests.workers.leases import lease
from tests.workers.scripted import ScriptedEngine
from workers.capacity import Ledger, Plan
from workers.engine import Usage
from workers.load_watch import LoadWatch
from workers.recent import LATELY_S, MINUTE_S, Recent


@pytest.fixture
def recent() -> Recent:
    return Recent(Ledger(Plan(4)), LoadWatch(ScriptedEngine(), every_s=1.0))


def test_before_the_first_sample_nothing_is_known(recent: Recent) -> None:
    assert recent.means(MINUTE_S, now=0.0) is None
    assert recent.tpot_s(now=0.0) is None


def test_means_are_over_their_span_and_no_longer(recent: Recent) -> None:
    for second in range(50):
        recent.sample(now=float(second))
    recent.ledger.take(lease("a", run_s=30.0), now=50.0)
    for second in range(50, 60):
        recent.sample(now=float(second))
    assert recent.means(LATELY_S, now=59.5) == LoadMeans(0.25, None, 30.0)
    assert recent.means(MINUTE_S, now=59.5) == LoadMeans(round(0.25 / 6, 4), None, 5.0)
    for second in range(60, 200):
        recent.sample(now=float(second))
    assert recent.means(MINUTE_S, now=200.0) == LoadMeans(0.25, None, 30.0)


def test_pace_is_time_between_tokens_not_to_the_first(recent: Recent) -> None:
    recent.ledger.take(lease("a"), now=0.0)
    recent.sample(now=0.0)
    recent.ledger.grow("a", 1, now=5.0)
    for token in range(1, 41):
        recent.ledger.grow("a", 1, now=5.0 + token * 0.05)
    recent.sample(now=7.0)
    assert recent.tpot_s(now=7.0) == pytest.approx(0.05)


def test_pace_of_several_choices_is_that_of_one(recent: Recent) -> None:
    recent.ledger.take(lease("a", choices=2), now=0.0)
    recent.ledger.grow("a", 2, now=0.0)
    recent.sample(now=0.0)
    for step in range(1, 41):
        recent.ledger.grow("a", 2, now=step * 0.05)
    recent.sample(now=2.0)
    assert recent.tpot_s(now=2.0) == pytest.approx(0.05)


def test_an_answer_that_comes_as_a_whole_tells_its_pace_at_its_end(recent: Recent) -> None:
    recent.ledger.take(lease("a", stream=False, prompt_tokens=0), now=0.0)
    recent.sample(now=0.0)
    recent.ledger.learn("a", Usage(0, 100, 0), now=2.0 + recent.ledger.pace.overhead_s)
    recent.sample(now=3.0)
    assert recent.tpot_s(now=3.0) == pytest.approx(0.02)


def test_a_few_tokens_tell_nothing_and_old_ones_tell_until_a_minute_has_passed(recent: Recent) -> None:
    recent.ledger.take(lease("a"), now=0.0)
    recent.ledger.grow("a", 1, now=0.0)
    recent.sample(now=0.0)
    recent.ledger.grow("a", 20, now=1.0)
    recent.sample(now=1.0)
    assert recent.tpot_s(now=1.0) is None
    recent.ledger.grow("a", 80, now=5.0)
    recent.sample(now=5.0)
    recent.sample(now=30.0)
    assert recent.tpot_s(now=30.0) == pytest.approx(0.05)
    recent.sample(now=90.0)
    assert recent.tpot_s(now=90.0) is None


def test_held_jobs_are_told_by_class_longest_first(recent: Recent) -> None:
    for name, service_class, run_s in (("a", 2, 60.0), ("b", 0, 1.0), ("c", 2, 90.0)):
        recent.ledger.take(lease(name, service_class, run_s=run_s), now=0.0)
    assert recent.ledger.jobs() == {"P2": [90.0, 60.0], "P0": [1.0]}
    assert recent.ledger.predicted_s == 151.0
