"""Which pool: by the threshold, moved by load, held by the conversation, and never one that is closed if the other is open."""

import pytest

from broker.placement import Placed, PoolLoad, Rule, Wanted, degraded_from, moved, parse_record, place

RULE = Rule("auto", "s", "l", threshold=0.6, slo_s=10.0)
CLOSED = PoolLoad(open=False)


@pytest.mark.parametrize(("p", "pool"), [(0.6, "s"), (0.59, "l"), (1.0, "s"), (0.0, "l")])
def test_the_small_model_gets_what_it_suffices_for(p: float, pool: str) -> None:
    assert place(RULE, Wanted(p)).pool == pool


def test_waiting_within_the_slo_moves_nothing() -> None:
    assert moved(0.6, small=PoolLoad(wait_s=9.0), large=PoolLoad(wait_s=10.0), slo_s=10.0) == 0.6


def test_a_large_pool_past_its_slo_gets_only_what_needs_it_most() -> None:
    placed = place(RULE, Wanted(0.5), large=PoolLoad(wait_s=20.0))
    assert (placed.pool, placed.threshold, placed.why) == ("s", 0.3, "load")
    assert place(RULE, Wanted(0.29), large=PoolLoad(wait_s=20.0)).pool == "l"


def test_a_small_pool_past_its_slo_gives_some_to_an_idle_large_one() -> None:
    placed = place(RULE, Wanted(0.7), small=PoolLoad(wait_s=40.0))
    assert (placed.pool, placed.why) == ("l", "load")


def test_where_both_wait_alike_nothing_is_moved() -> None:
    busy = PoolLoad(wait_s=50.0)
    assert moved(0.6, small=busy, large=busy, slo_s=10.0) == 0.6


@pytest.mark.parametrize("pool", ["s", "l"])
def test_a_conversation_stays(pool: str) -> None:
    placed = place(RULE, Wanted(0.99 if pool == "l" else 0.01, sticky=pool))
    assert (placed.pool, placed.why) == (pool, "sticky")


def test_a_conversation_leaves_a_pool_that_is_closed() -> None:
    placed = place(RULE, Wanted(0.9, sticky="l"), large=CLOSED)
    assert (placed.pool, placed.why) == ("s", "degraded:l")
    assert degraded_from(placed.text) == "l"
    assert degraded_from(f"{placed.text} degraded:s") == "l"


def test_where_both_are_closed_the_choice_stands() -> None:
    assert place(RULE, Wanted(0.9), small=CLOSED, large=CLOSED).pool == "s"


@pytest.mark.parametrize("why", ["", "load", "sticky", "degraded:l"])
def test_the_record_says_all_and_can_be_read_again(why: str) -> None:
    placed = Placed("team/auto", "small", 0.83, 0.42, "fact", why)
    assert placed.text.startswith("small p=0.83")
    assert parse_record(placed.text) == placed
    assert parse_record("no record") is None
