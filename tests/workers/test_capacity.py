"""The ledger of slots."""

from workers.capacity import Ledger


def test_a_slot_is_held_from_lease_to_end_and_given_back_once() -> None:
    ledger = Ledger(2)
    ledger.take("a")
    ledger.take("b")
    assert (ledger.free, ledger.busy) == (0, 2)
    ledger.give_back("a")
    ledger.give_back("a")
    assert (ledger.free, ledger.busy) == (1, 1)


def test_fewer_slots_than_running_jobs_is_no_room_not_negative_room() -> None:
    ledger = Ledger(2)
    ledger.take("a")
    ledger.take("b")
    ledger.slots = 1
    assert ledger.free == 0
