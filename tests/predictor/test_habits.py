"""The cache of pasts: bounded, and it asks for what it lacks."""

from predictor.habits import MOST_ASKED, Habits, past_key
from predictor.history import NO_HISTORY


def test_keys_of_tenants_differ_and_tell_nothing() -> None:
    assert past_key("a", "t") != past_key("b", "t")
    assert past_key("a", "bt") != past_key("ab", "t")
    assert len(past_key("acme", "0123456789abcdef")) == 16


def test_the_least_used_pasts_are_dropped_first() -> None:
    habits = Habits(most=2)
    habits.put("small", {"one": [1.0], "two": [2.0]})
    habits.past("small", "one")
    habits.put("small", {"three": [3.0]})
    assert len(habits) == 2
    assert habits.past("small", "two").template == NO_HISTORY
    assert habits.past("small", "one").template.count == 1


def test_what_is_asked_for_between_two_looks_is_bounded() -> None:
    habits = Habits()
    for number in range(2 * MOST_ASKED):
        habits.past("small", str(number))
    assert sum(map(len, habits.asked().values())) == MOST_ASKED


def test_pools_do_not_share_pasts() -> None:
    habits = Habits()
    habits.put("small", {"one": [1.0]})
    assert habits.past("large", "one").template == NO_HISTORY
