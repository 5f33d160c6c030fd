"""The reserve for interactive jobs follows the waits that were seen, and costs batch work nothing without them."""

from hypothesis import given
from hypothesis import strategies as st

from tests.workers.leases import lease
from workers.capacity import Ledger, Plan
from workers.reserve import HALF_S, Reserve


def test_without_interactive_waits_batch_work_has_every_slot() -> None:
    assert Reserve().bulk_slots(16, free=16, bulk=0, now=1e6) == 16


def test_waits_grow_the_reserve_and_it_halves_as_they_stop() -> None:
    reserve = Reserve()
    for _ in range(8):
        reserve.missed(16, now=100.0)
    assert reserve.kept(16, now=100.0) == 4
    assert reserve.kept(16, now=100.0 + HALF_S) == 2
    assert reserve.kept(16, now=100.0 + 2 * HALF_S) == 1
    assert reserve.kept(16, now=100.0 + 10 * HALF_S) == 0


def test_no_storm_of_waits_keeps_batch_work_out_for_long() -> None:
    reserve = Reserve()
    for _ in range(10_000):
        reserve.missed(16, now=0.0)
    assert reserve.kept(16, now=0.0) == 4
    assert reserve.kept(16, now=3 * HALF_S + 0.1) == 0


def test_an_adaptive_reserve_is_of_the_free_slots_whatever_interactive_jobs_hold() -> None:
    reserve = Reserve()
    for _ in range(4):
        reserve.missed(16, now=0.0)
    assert reserve.bulk_slots(16, free=3, bulk=5, now=0.0) == 1
    assert reserve.bulk_slots(16, free=2, bulk=5, now=0.0) == 0


def test_a_fixed_reserve_is_rounded_up_and_left_to_interactive_jobs() -> None:
    plan = Plan(8, reserve=0.3)  # 2.4 slots: 3
    held = Ledger(plan)
    assert held.room(now=0.0).bulk_slots == 5
    for n in range(5):
        held.take(lease(str(n), 2), now=0.0)
    assert held.room(now=0.0).bulk_slots == 0
    held = Ledger(plan)
    for n in range(5):
        held.take(lease(str(n), 0), now=0.0)
    assert held.room(now=0.0).bulk_slots == 3


def test_the_reserve_is_of_the_cache_too() -> None:
    held = Ledger(Plan(8, kv_tokens=1600))
    held.take(lease("chat", 0, kv_tokens=1280), now=0.0)
    assert held.room(now=0.0).bulk_slots == 7
    for _ in range(2):
        held.missed(now=0.0)
    assert held.room(now=0.0).bulk_slots == 0  # 320 tokens are less than another chat may need
    held.take(lease("agent", 1, kv_tokens=80), now=0.0)
    held.give_back("chat")
    assert held.room(now=0.0).bulk_slots == 6


@given(
    slots=st.integers(1, 300),
    most=st.floats(0, 0.99),
    misses=st.lists(st.floats(0, 100), max_size=60),
    later=st.floats(0, 1000),
)
def test_the_reserve_stays_within_its_bound_and_leaves_batch_work_a_slot(
    slots: int, most: float, misses: list[float], later: float
) -> None:
    reserve = Reserve(most=most)
    for at in sorted(misses):
        reserve.missed(slots, now=at)
    kept = reserve.kept(slots, now=100.0 + later)
    assert 0 <= kept <= most * slots
    assert kept < slots
    assert 1 <= reserve.bulk_slots(slots, free=slots, bulk=0, now=100.0 + later) <= slots
