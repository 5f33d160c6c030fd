"""The limit on concurrent requests: found where nobody says it, lowered where the engine cannot do what was said."""

import random

from hypothesis import given
from hypothesis import strategies as st

from workers.aimd import MAX_FOUND, Concurrency


def play(limit: Concurrency, *, slots: int, rounds: int, step_s: float = 0.02) -> list[int]:
    """An engine of `slots` slots that queues what is beyond them, always as full as the limit allows. Its limits, by round."""
    found = []
    for _ in range(rounds):
        for _ in range(max(4, limit.now)):
            limit.full()
            wait_s = 2.0 * max(0, limit.now - slots) / slots  # answers of 2 s
            limit.saw_first(0.1 + wait_s, prompt_tokens=512)
            limit.saw_answer(step_s)
        found.append(limit.now)
    return found


def test_an_unknown_engines_slots_are_found_and_kept_to() -> None:
    found = play(Concurrency(None), slots=24, rounds=60)
    assert found[0] == 8
    settled = found[20:]
    assert min(settled) >= 0.75 * 24
    assert max(settled) <= 24 + 8


def test_an_engine_without_a_bound_in_sight_is_not_asked_for_more_than_the_most() -> None:
    assert play(Concurrency(None), slots=10_000, rounds=20)[-1] == MAX_FOUND


def test_known_slots_are_never_exceeded_and_used_from_the_start() -> None:
    limit = Concurrency(16)
    assert limit.now == 16
    assert set(play(limit, slots=16, rounds=20)) == {16}


def test_a_limit_that_nothing_presses_against_does_not_rise() -> None:
    limit = Concurrency(None)
    for _ in range(100):
        limit.saw_first(0.1, prompt_tokens=10)
        limit.saw_answer(0.02)
    assert limit.now == 4


def test_an_engine_that_thrashes_is_asked_for_less_until_it_does_not() -> None:
    limit, found = Concurrency(None, start=16), []
    play(limit, slots=16, rounds=3)
    for _ in range(12):
        play(limit, slots=100, rounds=1, step_s=0.02 * max(1.0, limit.now - 6))
        found.append(limit.now)
    assert 6 <= min(found[4:]) <= 10


def test_a_delay_that_fewer_requests_do_not_cure_is_taken_as_it_is() -> None:
    limit = Concurrency(None, start=16)
    play(limit, slots=16, rounds=3)
    before = limit.now
    found = play(limit, slots=16, rounds=30, step_s=0.2)
    assert min(found) >= 0.4 * before
    assert found[-1] >= 16


def test_known_slots_are_kept_whatever_tokens_take() -> None:
    limit = Concurrency(16)
    for at in range(400):
        limit.full()
        limit.saw_first(0.01 if at < 20 else 5.0, prompt_tokens=100)
        limit.saw_answer(0.001 if at < 20 else 0.2)
    assert limit.now == 16


def test_a_busy_engine_halves_the_limit_once_for_each_incident() -> None:
    limit = Concurrency(16)
    for at in (10.0, 10.1, 10.9):
        limit.busy(now=at)
    assert limit.now == 8
    limit.busy(now=11.5)
    assert limit.now == 4


def test_longer_prompts_alone_do_not_look_like_a_slower_engine() -> None:
    limit, rng = Concurrency(8), random.Random(1)
    for tokens in [500] * 50 + [4000] * 50:
        limit.saw_first(0.0002 * (512 + tokens) * rng.uniform(0.9, 1.1), prompt_tokens=tokens)
        limit.saw_answer(0.02)
    assert limit.now == 8


@given(
    slots=st.none() | st.integers(1, 512),
    delays=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10), st.booleans()), max_size=200),
)
def test_the_limit_is_at_least_one_and_at_most_what_is_allowed(
    slots: int | None, delays: list[tuple[float, float, bool]]
) -> None:
    limit = Concurrency(slots)
    for at, (ttft_s, tpot_s, busy) in enumerate(delays):
        limit.full()
        limit.saw_first(ttft_s, prompt_tokens=100)
        limit.saw_answer(tpot_s)
        if busy:
            limit.busy(now=float(at))
        assert 1 <= limit.now <= (slots or MAX_FOUND)
