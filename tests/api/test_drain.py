"""How fast a queue empties: what counts as a measure, and what is concluded from it. Counted by hand."""

import pytest

from api.drain import ENOUGH_S, Drain
from api.snapshots import UNSERVED_S, Snapshot
from broker.errors import LimitReached
from broker.fleet import PoolView, WorkerRecord
from broker.job import Ahead, ServiceClass

P0, P1, P2, P3 = ServiceClass


def view(*, slots: int = 4, busy: int = 4, waiting: int = 1, **counters: float) -> PoolView:
    """A pool with one worker. Counters as in Redis, `_` for `:`; one class is `_0` to `_3`."""
    worker = WorkerRecord("w", "small", "e", "m", slots, busy, "ready", 1, "here")
    named = {f"{name[:-2]}:{name[-1]}" if name[-2] == "_" else name: v for name, v in counters.items()}
    return PoolView("small", [worker] if slots else [], [waiting, 0, 0, 0], 0, 0, 0, counters=named)


def measured(seconds: int = 4, *, jobs: int = 2, cost_ms: float = 3000.0) -> Drain:
    """P2 has been waiting, and each second two of its jobs were claimed by four slots."""
    drain = Drain()
    for n in range(seconds):
        looks = [
            view(enqueued_2=1000, queued_2=1000 - jobs * m, claimed_ms_2=m * jobs * cost_ms)
            for m in (n, n + 1)
        ]
        drain = drain.after(*looks, dt_s=1.0)
    return drain


def test_rate_is_what_left_per_second_whatever_its_age() -> None:
    drain = measured()
    assert drain.jobs_per_s(4) == pytest.approx(2.0)
    assert drain.run_s_per_s(4) == pytest.approx(6.0)
    assert drain.jobs_per_s(4, P2) == pytest.approx(2.0)
    assert drain.run_s_per_s(4, P0) is None


def test_rate_is_per_slot_as_workers_come_and_go() -> None:
    assert measured().run_s_per_s(8) == pytest.approx(12.0)


def test_jobs_that_came_back_did_not_leave() -> None:
    before = view(enqueued_0=10, queued_0=5)
    after = view(enqueued_0=10, queued_0=4, claimed_ms_0=5000, returned_ms_0=4000)
    assert Drain().after(before, after, dt_s=1.0).run_s_per_s(4) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("before", "after", "dt_s"),
    [
        (view(waiting=0), view(claimed_ms_0=1000), 1.0),
        (view(), view(waiting=0, claimed_ms_0=1000), 1.0),
        (view(), view(claimed_ms_0=1000), 11.0),
        (view(), view(claimed_ms_0=1000), 0.0),
        (view(), view(claimed_ms_0=1000, paused=1.0), 1.0),
        (view(), view(slots=0, claimed_ms_0=1000), 1.0),
    ],
)
def test_interval_in_which_nothing_need_have_waited_says_nothing(
    before: PoolView, after: PoolView, dt_s: float
) -> None:
    drain = Drain().after(before, after, dt_s=dt_s)
    assert drain.run_s_per_s(4) is None
    assert drain.whole.over_s == 0.0


def test_measure_is_enough_after_some_seconds_and_fades() -> None:
    assert not measured(seconds=int(ENOUGH_S) - 1).is_sure
    assert measured(seconds=5).is_sure
    idle = view(waiting=0)
    assert not measured(seconds=5).after(idle, idle, dt_s=30.0).is_sure


def test_start_is_what_is_ahead_over_the_rate_and_the_next_slot() -> None:
    room = Snapshot(view(run_ms=2000.0), 0.0, measured())
    assert room.start_s(Ahead(10, 30.0)) == pytest.approx(30.0 / 6.0 + 2.0 / 4)
    assert room.start_s(Ahead(10, 30.0), queues=2) == pytest.approx(60.0 / 6.0 + 2.0 / 4)
    assert room.start_s(None) is None


def test_job_for_which_a_slot_is_free_starts_at_once() -> None:
    room = Snapshot(view(busy=2), 0.0)
    assert room.start_s(Ahead(1, 5.0)) == 0.0
    assert room.start_s(Ahead(2, 10.0)) == 10.0 / 4, (
        "nothing measured: a slot does a predicted second per second"
    )


def test_nobody_says_when_a_job_starts_that_nobody_serves() -> None:
    assert Snapshot(view(slots=0), 0.0).start_s(Ahead(0, 0.0)) is None
    assert Snapshot(view(paused=1.0), 0.0).start_s(Ahead(0, 0.0)) is None


@pytest.mark.parametrize(
    ("full", "after_s"),
    [
        (LimitReached("small", "P2", unit="jobs", waiting=100, most=100), 5 / 2.0),
        (LimitReached("small", "P2", unit="s", waiting=600.0, most=600.0), 30 / 6.0),
        (LimitReached("small", "", unit="jobs", waiting=100, most=100), 5 / 2.0),
        (LimitReached("small", "P0", unit="s", waiting=600.0, most=600.0), 30 / 6.0),
        (LimitReached("small", "P2", unit="jobs", waiting=1, most=1), 1 / 2.0),
    ],
)
def test_refused_caller_comes_back_when_a_twentieth_of_the_limit_has_left(
    full: LimitReached, after_s: float
) -> None:
    room = Snapshot(view(), 0.0, measured())
    assert room.room_in_s(full) == pytest.approx(after_s)
    assert room.room_in_s(full, queues=3) == pytest.approx(3 * after_s)


def test_without_a_measure_the_mean_of_runs_or_forecasts_and_the_slots_have_to_do() -> None:
    full = LimitReached("small", "P2", unit="jobs", waiting=100, most=100)
    assert Snapshot(view(run_ms=8000.0), 0.0).room_in_s(full) == pytest.approx(5 * 8.0 / 4)
    queue = view(queued_2=100, queued_ms_2=600_000)
    assert Snapshot(queue, 0.0).room_in_s(full) == pytest.approx(5 * 6.0 / 4)
    assert Snapshot(view(slots=0), 0.0).room_in_s(full) == UNSERVED_S
