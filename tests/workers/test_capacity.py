"""The ledger: what it lets a worker ask for, and whom it stops. Pure, so the right values are counted by hand."""

from broker.job import Lease
from broker.policy import Room
from tests.workers.leases import lease
from workers.capacity import Grown, Ledger, Plan
from workers.engine import EngineLoad, Usage
from workers.holding import MAX_PREEMPTS


def ledger(plan: Plan, *leases: Lease) -> Ledger:
    """The leases were taken at 0 s, 1 s, ..."""
    made = Ledger(plan)
    for at, held in enumerate(leases):
        made.take(held, now=float(at))
    return made


def test_a_slot_is_held_from_lease_to_end_and_given_back_once() -> None:
    held = ledger(Plan(2), lease("a"), lease("b"))
    assert (held.free, held.busy) == (0, 2)
    held.give_back("a")
    held.give_back("a")
    assert (held.free, held.busy) == (1, 1)


def test_fewer_slots_than_running_jobs_is_no_room_not_negative_room() -> None:
    assert ledger(Plan(1), lease("a"), lease("b")).free == 0


def test_a_request_for_several_choices_takes_as_many_slots() -> None:
    held = Ledger(Plan(8))
    held.take(lease("many", choices=3), now=0.0)
    assert (held.busy, held.free) == (3, 5)
    held.take(lease("all", choices=100), now=0.0)
    assert held.free == 0


def test_an_idle_engine_takes_any_one_job() -> None:
    room = ledger(Plan(4, kv_tokens=250)).room(now=0.0)
    assert room == Room(slots=4, bulk_slots=4, kv_tokens=250, kv_total_tokens=250, total_slots=4)
    room = ledger(Plan(4)).room(now=0.0)
    assert room == Room(slots=4, bulk_slots=4, total_slots=4)


def test_kv_tokens_are_the_cache_without_the_peak_of_what_runs() -> None:
    held = Ledger(Plan(4, kv_tokens=1000))
    held.take(lease("a", kv_tokens=300, prompt_tokens=100), now=0.0)
    assert held.room(now=0.0).kv_tokens == 1000 - 304  # 19 pages of 16
    held.grow("a", 100, now=1.0)
    assert held.room(now=1.0).kv_tokens == 1000 - 304  # it needs no more than was predicted
    held.grow("a", 150, now=2.0)
    assert held.room(now=2.0).kv_tokens == 1000 - 352 - 16  # 350 tokens, and the next page


def test_jobs_that_end_one_after_the_other_share_what_they_will_need() -> None:
    held = Ledger(Plan(4, kv_tokens=1000))
    for name, output in (("short", 32), ("long", 160)):
        held.take(lease(name, kv_tokens=160 + output, prompt_tokens=160), now=0.0)
    # when the short one ends both hold 192; at its own end the long one holds 320, alone
    assert held.room(now=0.0).kv_tokens == 1000 - 384


def test_answers_that_stay_below_their_limit_are_counted_by_what_they_take() -> None:
    held = Ledger(Plan(4, kv_tokens=10_000))
    for n in range(20):
        held.take(lease(str(n), kv_tokens=2100, prompt_tokens=100), now=0.0)
        held.learn(str(n), Usage(100, 200, 0), now=5.0)
        held.give_back(str(n))
    held.take(lease("next", kv_tokens=2100, prompt_tokens=100), now=10.0)
    assert held.room(now=10.0).kv_tokens == 10_000 - 304  # a tenth of its limit


def test_the_engines_word_on_its_cache_wins_within_bounds() -> None:
    held = Ledger(Plan(4, kv_tokens=1600))
    held.take(lease("a", kv_tokens=480, prompt_tokens=304), now=0.0)
    held.observe(EngineLoad(kv_used_share=0.1), now=0.0)  # its prompt is still to be read
    assert held.room(now=0.0).kv_tokens == 1600 - 480
    held.grow("a", 16, now=1.0)  # it holds 320
    held.observe(EngineLoad(kv_used_share=0.5), now=1.0)  # 480 more than we count
    assert held.room(now=1.0).kv_tokens == 1600 - 480 - 480
    held.observe(EngineLoad(kv_used_share=0.15), now=1.0)  # 80 less: a shared prefix
    assert held.room(now=1.0).kv_tokens == 1600 + 80 - 480
    held.observe(EngineLoad(kv_used_share=0.0), now=1.0)  # at most half of it is believed to be shared
    assert held.room(now=1.0).kv_tokens == 1600 + 160 - 480


def test_an_engine_that_does_not_say_leaves_our_own_count() -> None:
    held = Ledger(Plan(4, kv_tokens=1600))
    held.take(lease("a", kv_tokens=320, prompt_tokens=320), now=0.0)
    held.observe(EngineLoad(kv_used_share=1.0), now=0.0)
    held.observe(EngineLoad(), now=0.0)
    assert held.room(now=0.0).kv_tokens == 1600 - 336


def test_growth_is_told_at_the_first_token_and_at_each_page() -> None:
    held = ledger(Plan(4), lease("a"))
    assert held.grow("a", 1, now=1.0) is Grown.BEGUN
    assert held.grow("a", 15, now=1.0) is None
    assert held.grow("a", 1, now=1.0) is Grown.PAGE
    assert held.grow("gone", 1, now=1.0) is None


def test_a_cache_that_runs_full_stops_the_cheapest_batch_job_once() -> None:
    held = Ledger(Plan(4, kv_tokens=200))
    for at, name in enumerate(("p0", "old", "young")):
        held.take(lease(name, 0 if name == "p0" else 2, prompt_tokens=40), now=float(at))
    assert held.relief(now=3.0) is None  # 3 x 48 and 3 pages of 16 are 192
    held.grow("p0", 20, now=3.0)
    assert held.relief(now=3.0) == "young"
    held.stop("young")
    assert held.relief(now=3.0) is None  # what it holds is as good as free
    held.give_back("young")
    assert held.relief(now=3.0) is None


def test_a_job_that_is_alone_is_never_stopped_for_its_size() -> None:
    held = Ledger(Plan(4, kv_tokens=64))
    held.take(lease("huge", 2, prompt_tokens=100), now=0.0)
    assert held.relief(now=0.0) is None


def test_batch_prompts_are_let_in_as_the_engine_has_read_the_others() -> None:
    held = Ledger(Plan(16, prefill_tokens=1000))
    assert held.room(now=0.0).prefill_tokens == 1000
    held.take(lease("a", 2, prompt_tokens=300, kv_tokens=0), now=0.0)
    assert held.room(now=0.0).prefill_tokens == 700
    held.take(lease("long", 2, prompt_tokens=8000, kv_tokens=0), now=0.0)
    room = held.room(now=0.0)
    assert (room.slots, room.prefill_tokens, room.prefill_total_tokens) == (14, 0, 1000)
    held.grow("long", 1, now=2.0)
    held.grow("a", 1, now=2.0)
    assert held.room(now=2.0).prefill_tokens == 1000


def test_prompts_of_interactive_jobs_are_no_reason_to_wait_nor_made_to() -> None:
    held = Ledger(Plan(16, prefill_tokens=1000))
    held.take(lease("chat", 0, prompt_tokens=8000, kv_tokens=0), now=0.0)
    assert held.room(now=0.0).prefill_tokens == 1000
    assert held.prefill_tokens(now=0.0) == 8000


def test_a_batch_prompt_whose_first_token_nobody_sees_is_through_by_the_engines_pace() -> None:
    held = Ledger(Plan(16, prefill_tokens=1000))
    held.take(lease("quiet", 2, stream=False, prompt_tokens=8000, kv_tokens=0), now=0.0)
    through_s = held.pace.prefill_s(8000)
    assert held.next_room_s(now=0.0) == through_s
    assert held.room(now=through_s - 0.001).prefill_tokens == 0
    assert held.room(now=through_s).prefill_tokens == 1000
    assert held.next_room_s(now=through_s) is None


def test_background_is_stopped_before_batch_and_the_youngest_first() -> None:
    running = (lease("p2", 2), lease("old", 3), lease("young", 3), lease("p0", 0), lease("p1", 1))
    held = ledger(Plan(8), *running)
    assert held.victim(now=9.0) == "young"
    held.give_back("young")
    held.give_back("old")
    assert held.victim(now=9.0) == "p2"
    held.give_back("p2")
    assert held.victim(now=9.0) is None


def test_a_job_near_its_predicted_end_is_stopped_after_one_that_has_run_longer() -> None:
    held = ledger(Plan(8), lease("older", 2, run_s=100.0), lease("nearly", 2, run_s=10.0))
    assert held.victim(now=5.0) == "nearly"
    assert held.victim(now=9.0) == "older"


def test_a_job_is_not_stopped_for_ever_nor_once_somebody_reads_it_nor_twice_at_a_time() -> None:
    held = ledger(Plan(8), lease("often", 3, preempts=MAX_PREEMPTS), lease("read", 2, attached=True))
    assert held.victim(now=1.0) == "read"
    held.stop("read")
    assert held.victim(now=1.0) is None
    held.give_back("read")
    held.take(lease("read", 2, attached=True), now=1.0)
    held.grow("read", 1, now=2.0)
    assert held.victim(now=2.0) is None


def test_pages_are_as_large_as_the_engine_says() -> None:
    held = Ledger(Plan(4, kv_tokens=1280, page_tokens=128))
    held.take(lease("a", kv_tokens=150, prompt_tokens=100), now=0.0)
    assert held.room(now=0.0).kv_tokens == 1280 - 256
    held.grow("a", 20, now=1.0)
    assert held.grow("a", 7, now=1.0) is None
    assert held.grow("a", 110, now=1.0) is Grown.PAGE
