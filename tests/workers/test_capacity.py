"""The ledger of slots and KV tokens, and whom it stops: pure, so the right values are counted by hand."""

from broker.job import Lease, ServiceClass
from broker.policy import Room
from workers.capacity import MAX_PREEMPTS, Ledger, Plan


def lease(name: str, service_class: int = 0, **changes: object) -> Lease:
    values: dict[str, object] = {
        "job_id": name,
        "token": 1,
        "service_class": ServiceClass(service_class),
        "endpoint": "/v1/completions",
        "stream": True,
        "attached": False,
        "attempt": 1,
        "run_s": 1.0,
        "deadline": 0.0,
        "tenant": "t",
        "body": b"",
        "kv_tokens": 100,
    }
    return Lease(**(values | changes))  # type: ignore[arg-type]


def ledger(plan: Plan, *leases: Lease) -> Ledger:
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


def test_kv_tokens_are_what_the_running_jobs_may_need_less() -> None:
    plan = Plan(4, kv_tokens=250)
    assert ledger(plan, lease("a"), lease("b")).room().kv_tokens == 50
    assert ledger(plan, lease("a", kv_tokens=300)).room().kv_tokens == 0


def test_an_idle_engine_takes_any_job() -> None:
    assert ledger(Plan(4, kv_tokens=250)).room() == Room(slots=4, bulk_slots=4, kv_total_tokens=250)


def test_the_reserve_is_rounded_up_and_left_to_interactive_jobs() -> None:
    plan = Plan(8, reserve=0.3)  # 2.4 slots: 3
    assert ledger(plan).room().bulk_slots == 5
    assert ledger(plan, *(lease(str(i), 2) for i in range(5))).room().bulk_slots == 0
    assert ledger(plan, *(lease(str(i), 0) for i in range(5))).room().bulk_slots == 3


def test_background_is_stopped_before_batch_and_the_youngest_first() -> None:
    running = (lease("p2", 2), lease("old", 3), lease("young", 3), lease("p0", 0), lease("p1", 1))
    held = ledger(Plan(8), *running)
    assert held.victim() == "young"
    held.give_back("young")
    held.give_back("old")
    assert held.victim() == "p2"
    held.give_back("p2")
    assert held.victim() is None


def test_a_job_is_not_stopped_for_ever_nor_once_somebody_reads_it() -> None:
    held = ledger(Plan(8), lease("often", 3, preempts=MAX_PREEMPTS), lease("read", 2, attached=True))
    assert held.victim() == "read"
    held.begin("read")
    assert held.victim() is None
