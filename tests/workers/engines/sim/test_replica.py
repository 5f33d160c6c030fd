"""What a serving engine does with its requests: who runs, who waits, who starts over, and how long a step takes."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from tests.workers.engines.sim.hardware import Linear, counts, prompt, request, run
from workers.engines.sim.replica import Replica
from workers.engines.sim.scheduler import Limits
from workers.engines.sim.sequence import Answer, Request, prompt_of
from workers.engines.sim.tokens import tokenise, word

Make = Callable[..., Replica]


@pytest.fixture
def make() -> Make:
    """A replica of 1,024 tokens of KV, changed as told."""

    def build(**changes: object) -> Replica:
        values: dict[str, object] = {"kv_tokens": 1024, "max_model_len": 512, "max_num_seqs": 4}
        return Replica(Limits(**(values | changes)), Linear())  # type: ignore[arg-type]

    return build


def test_an_answer_has_as_many_tokens_as_it_was_to_have(make: Make) -> None:
    replica = make()
    replica.add(request("a", 20, 3))
    assert counts(run(replica)) == {("a", 0): [0, 1, 2]}
    assert replica.pool.used == 0


def test_a_step_takes_what_the_hardware_says(make: Make) -> None:
    replica = make()
    replica.add(request("a", 100, 2))
    prefill, decode = run(replica)
    assert [prefill.seconds, decode.seconds] == pytest.approx([0.002, 0.001])
    assert (prefill.prefill_tokens, decode.decode_sequences) == (100, 1)


def test_no_step_computes_more_tokens_than_its_budget_and_decoding_goes_first(make: Make) -> None:
    replica = make(max_num_batched_tokens=64)
    replica.add(request("a", 32, 20))
    replica.step()
    replica.add(request("long", 300, 1, kind=1))
    results = run(replica)
    assert max(r.prefill_tokens + r.decode_sequences for r in results) == 64
    assert [r.prefill_tokens for r in results[:5]] == [63, 63, 63, 63, 48]
    assert all(r.decode_sequences == 1 for r in results[:5]), "the running answer did not stall"


def test_no_more_sequences_run_than_there_are_places(make: Make) -> None:
    replica = make(max_num_seqs=2)
    for n in range(5):
        replica.add(request(f"r{n}", 16, 5, kind=n))
    replica.step()
    assert (replica.running, replica.waiting) == (2, 3)
    assert len(counts(run(replica))) == 5


def test_continuous_batching_refills_places_and_static_batching_waits_for_the_last(make: Make) -> None:
    def seconds(batching: str) -> float:
        replica = make(max_num_seqs=2, batching=batching)
        for n, tokens in enumerate((100, 10, 10, 10)):
            replica.add(request(f"r{n}", 16, tokens, kind=n))
        return sum(result.seconds for result in run(replica))

    # A long answer of 100 steps; the short ones run beside it one after the other, or 10 more steps after it.
    assert seconds("continuous") == pytest.approx(0.100 + 4 * 16 * 0.00001)
    assert seconds("static") == pytest.approx(0.110 + 4 * 16 * 0.00001)


def test_a_static_batch_takes_members_while_its_prompts_are_computed(make: Make) -> None:
    replica = make(batching="static", max_num_batched_tokens=16, max_num_seqs=3)
    for n in range(4):
        replica.add(request(f"r{n}", 16, 50, kind=n))
    for _ in range(4):
        replica.step()
    assert (replica.running, replica.waiting) == (3, 1)


def test_a_full_prefix_is_taken_from_the_cache_except_for_its_last_token(make: Make) -> None:
    replica = make()
    replica.add(request("a", 64, 1))
    run(replica)
    replica.add(request("b", 64, 1))
    (result,) = run(replica)
    assert (result.prefill_tokens, result.finished) == (16, {"b": 48})
    assert (replica.totals.cache_queries, replica.totals.cache_hits) == (128, 48)


def test_prompts_share_only_whole_blocks_and_only_under_the_same_salt(make: Make) -> None:
    replica = make()
    replica.add(request("a", 60, 1))
    run(replica)
    replica.add(Request("salted", prompt(60, salt="tenant"), (Answer(1),)))
    replica.add(request("b", 60, 1))
    assert [result.finished for result in run(replica)] == [{"salted": 0, "b": 48}]


def test_requests_of_the_same_step_share_what_the_first_of_them_computes(make: Make) -> None:
    replica = make()
    replica.add(request("a", 64, 1))
    replica.add(request("b", 64, 1))
    (result,) = run(replica)
    assert result.prefill_tokens == 64 + 16


def test_an_answer_that_comes_back_as_prompt_is_cached_too(make: Make) -> None:
    replica = make()
    tokens = tokenise(" hello" * 10)
    replica.add(Request("turn1", prompt_of(tokens), (Answer(40, seed=7),)))
    run(replica)
    said = tokenise("".join(word(7, n) for n in range(40)))
    replica.add(Request("turn2", prompt_of([*tokens, *said, 9, 9, 9]), (Answer(1),)))
    (result,) = run(replica)
    assert result.finished == {"turn2": (len(tokens) + 39) // 16 * 16}


def test_the_cache_forgets_what_was_not_used_for_longest(make: Make) -> None:
    replica = make(kv_tokens=512)
    for kind in (0, 1, 0, 2):  # 15 of 32 blocks each: for the last, those of 1 go, from its end on
        replica.add(request(f"{kind}", 240, 1, kind=kind))
        run(replica)
    for name, kind in (("again", 0), ("gone", 1)):
        replica.add(request(name, 240, 1, kind=kind))
    assert [r.finished for r in run(replica)] == [{"again": 14 * 16, "gone": 16}]


def test_answers_of_one_request_compute_the_prompt_once_and_copy_the_block_they_write_to(make: Make) -> None:
    replica = make()
    replica.add(request("a", 40, 3, 3, 3))
    first = replica.step()
    assert (first.prefill_tokens, len(first.emitted)) == (40, 3)
    assert replica.pool.used == 3, "all three share the prompt's blocks"
    replica.step()
    assert replica.pool.used == 2 + 3, "two full blocks are shared, the written one is each one's own"
    run(replica)
    assert replica.pool.used == 0


def test_answers_that_find_no_place_come_later(make: Make) -> None:
    replica = make(max_num_seqs=2)
    replica.add(request("a", 40, 3, 3, 3))
    assert len(replica.step().emitted) == 2
    assert counts(run(replica))["a", 2] == [0, 1, 2]


def test_a_sequence_that_starts_over_says_what_it_would_have_said(make: Make) -> None:
    replica = make(kv_tokens=256, max_model_len=256)
    for n in range(2):
        replica.add(request(f"r{n}", 64, 100, kind=n))
    results = run(replica)
    assert [name for r in results for name in r.preempted] == ["r1"]
    assert replica.totals.preemptions == 1
    assert counts(results) == {(f"r{n}", 0): list(range(100)) for n in range(2)}


def test_by_the_priority_policy_the_least_urgent_is_preempted_and_the_most_urgent_starts(make: Make) -> None:
    replica = make(kv_tokens=256, max_model_len=256, policy="priority")
    replica.add(request("batch", 64, 100, kind=0, priority=5))
    replica.step()
    replica.add(request("chat", 64, 100, kind=1, priority=-1))
    assert [name for r in run(replica) for name in r.preempted] == ["batch"]


def test_those_that_are_not_preempted_get_their_token_in_the_same_step(make: Make) -> None:
    replica = make(kv_tokens=128, max_model_len=128, policy="priority")
    replica.add(request("r0", 20, 8, priority=9))
    replica.step()
    for kind, tokens in ((1, 20), (2, 32), (3, 20)):  # two blocks for each of the four: all there are
        replica.add(request(f"r{kind}", tokens, 8, kind=kind))
    replica.step()
    result = replica.step()  # the third needs another block
    assert result.preempted == ["r0"]
    assert [token.request_id for token in result.emitted] == ["r1", "r2", "r3"]


def test_waiting_requests_start_by_priority_and_then_by_arrival(make: Make) -> None:
    replica = make(max_num_seqs=1, policy="priority")
    for name, priority in (("first", 1), ("second", 1), ("urgent", 0)):
        replica.add(request(name, 16, 1, priority=priority))
    assert [name for r in run(replica) for name in r.finished] == ["urgent", "first", "second"]


def test_without_that_policy_priorities_change_nothing(make: Make) -> None:
    replica = make(max_num_seqs=1)
    for name, priority in (("first", 1), ("urgent", 0)):
        replica.add(request(name, 16, 1, priority=priority))
    assert [name for r in run(replica) for name in r.finished] == ["first", "urgent"]


def test_a_prompt_that_does_not_fit_whole_waits_though_its_first_chunk_would_fit(make: Make) -> None:
    replica = make(kv_tokens=512, max_num_batched_tokens=64)
    replica.add(request("a", 300, 40))
    for _ in range(6):
        replica.step()
    replica.add(request("b", 300, 1, kind=1))
    replica.step()
    assert (replica.running, replica.waiting) == (1, 1)
    assert sum(len(r.preempted) for r in run(replica)) == 0


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_request_frees_its_blocks_and_place_at_once(make: Make, steps: int) -> None:
    replica = make(max_num_seqs=2)
    for name in ("a", "b", "c"):
        replica.add(request(name, 40, 9, 9, 9))
    for _ in range(steps):
        replica.step()
    for name in ("a", "b", "c", "unknown"):
        replica.abort(name)
    assert (replica.busy, replica.running, replica.waiting, replica.pool.used) == (False, 0, 0, 0)


def test_room_for_the_longest_answer_is_taken_at_the_start_where_pages_do_not_grow(make: Make) -> None:
    replica = make(reserve_tokens=512)
    for n in range(3):
        replica.add(request(f"r{n}", 16, 2, kind=n))
    replica.step()
    assert (replica.running, replica.waiting, replica.kv_used_share) == (2, 1, 1.0)


def test_requests_longer_than_the_model_and_ids_in_use_are_refused(make: Make) -> None:
    replica = make()
    replica.add(request("a"))
    with pytest.raises(ValueError, match="513 tokens"):
        replica.add(request("b", 500, 13, 1))
    with pytest.raises(ValueError, match="already"):
        replica.add(request("a"))


@pytest.mark.parametrize("wrong", [{"max_model_len": 2048}, {"max_num_seqs": 0}, {"reserve_tokens": 1025}])
def test_an_engine_that_could_not_run_its_longest_request_does_not_start(
    make: Make, wrong: dict[str, int]
) -> None:
    with pytest.raises(ConfigError):
        make(**wrong)


JOBS = st.lists(
    st.tuples(
        st.integers(1, 120),  # prompt tokens
        st.lists(st.integers(1, 40), min_size=1, max_size=3),  # answers
        st.integers(0, 3),  # kind of prompt
        st.integers(-2, 2),  # priority
        st.integers(0, 12),  # steps before it comes
        st.one_of(st.none(), st.integers(0, 12)),  # steps until it is called off
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(JOBS, st.sampled_from(["fcfs", "priority"]), st.sampled_from(["continuous", "static"]), st.booleans())
def test_whatever_comes_every_answer_is_whole_and_every_block_comes_back(
    jobs: list[tuple[int, list[int], int, int, int, int | None]], policy: str, batching: str, caching: bool
) -> None:
    limits = Limits(
        kv_tokens=192,
        max_model_len=160,
        max_num_seqs=3,
        max_num_batched_tokens=48,
        policy=policy,  # type: ignore[arg-type]
        batching=batching,  # type: ignore[arg-type]
        prefix_caching=caching,
    )
    replica, results, called_off = Replica(limits, Linear()), [], {}
    for n, (tokens, outputs, kind, priority, delay, abort) in enumerate(jobs):
        results += [replica.step() for _ in range(delay) if replica.busy]
        replica.add(request(f"r{n}", tokens, *outputs, kind=kind, priority=priority))
        if abort is not None:
            results += [replica.step() for _ in range(abort) if replica.busy]
            replica.abort(f"r{n}")
            called_off[f"r{n}"] = True
        assert replica.pool.used + replica.pool.free == replica.pool.total
        assert replica.running <= 3
    results += run(replica)
    found = counts(results)
    for n, (_, outputs, *_) in enumerate(jobs):
        if f"r{n}" not in called_off:
            assert [found[f"r{n}", i] for i in range(len(outputs))] == [list(range(c)) for c in outputs]
    assert replica.pool.used == 0
    assert all(r.prefill_tokens + r.decode_sequences <= 48 for r in results)
