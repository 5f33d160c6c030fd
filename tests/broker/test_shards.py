"""Which queue a job goes to, and in which order a worker asks its queues: pure."""

from collections import Counter

import pytest

from broker.config import Config, ModelConfig
from broker.errors import InvalidJob
from broker.fleet import PoolView, WorkerRecord, merged
from broker.job import derived_job_id, new_job_id, pool_of, queue_of
from broker.served import EVERY, Served, home_first
from broker.shards import MAX_SHARDS, Shards, jump_hash, queues_of

FOUR = queues_of("hot", 4)


def record(name: str, *, home: str, busy: int) -> WorkerRecord:
    return WorkerRecord(name, "hot", "e", "m", 8, busy, "ready", 1, "h", home=home)


def view(queue: str, *workers: WorkerRecord, **changes: float) -> PoolView:
    return PoolView(queue, list(workers), [1, 0, 2, 0], 1, 3, 0, promoted=1, counters=changes)


def test_one_shard_is_the_queue_that_there_always_was() -> None:
    assert queues_of("hot", 1) == ("hot",)
    assert Shards({"hot": 1}).pick("hot", 7) == Shards({}).pick("hot") == "hot"
    assert not Shards({"hot": 1}).is_split("hot")


@pytest.mark.parametrize("queue", ["hot", *FOUR, f"hot~{MAX_SHARDS - 1}"])
def test_a_jobs_id_names_its_queue_and_its_pool(queue: str) -> None:
    for job_id in (new_job_id(queue), derived_job_id(queue, seed=5)):
        assert (queue_of(job_id), pool_of(job_id)) == (queue, "hot")


@pytest.mark.parametrize("queue", ["hot~", "hot~01", "hot~100", "hot~a", "~1", "hot~1~1"])
def test_what_is_no_queue_is_in_no_id(queue: str) -> None:
    with pytest.raises(InvalidJob):
        queue_of(f"job_{'0' * 26}.{queue}")


def test_no_pool_may_be_called_like_a_shard() -> None:
    with pytest.raises(ValueError, match="no pool name"):
        ModelConfig(pool="hot~1")


def test_configured_shards_are_dealt_out() -> None:
    shards = Config(models=(ModelConfig(pool="hot", shards=4), ModelConfig(pool="cold"))).shards
    assert shards.queues("hot") == FOUR
    assert shards.queues("cold") == ("cold",)


def test_jobs_without_a_key_go_round() -> None:
    shards = Shards({"hot": 4})
    assert Counter(shards.pick("hot") for _ in range(400)) == dict.fromkeys(FOUR, 100)


def test_equal_keys_meet_and_others_spread() -> None:
    shards = Shards({"hot": 4})
    keys = [key * 0x9E3779B97F4A7C15 % 2**64 for key in range(4000)]
    chosen = [shards.pick("hot", key) for key in keys]
    assert chosen == [shards.pick("hot", key) for key in keys]
    assert all(900 < count < 1100 for count in Counter(chosen).values())


def test_one_shard_more_moves_its_share_of_the_keys_and_only_there() -> None:
    keys = [key * 0x9E3779B97F4A7C15 % 2**64 for key in range(4000)]
    moved = [(jump_hash(key, 4), jump_hash(key, 5)) for key in keys if jump_hash(key, 4) != jump_hash(key, 5)]
    assert {after for _, after in moved} == {4}
    assert 700 < len(moved) < 900


def test_the_others_follow_home_in_their_circle() -> None:
    assert home_first(FOUR, "hot~2") == ("hot~2", "hot~3", "hot~0", "hot~1")


def test_home_is_asked_first_and_the_others_in_turn_while_they_give_nothing() -> None:
    served = Served(home_first(FOUR, "hot~1"))
    asked = []
    for _ in range(EVERY - 1):
        first, second = served.round()
        assert first == "hot~1"
        served.gave_nothing(first)
        served.gave_nothing(second)
        asked.append(second)
    assert asked == ["hot~2", "hot~3", "hot~0"] * 2 + ["hot~2"]


def test_a_queue_that_gives_is_stayed_with() -> None:
    served = Served(FOUR)
    assert [served.round()[1] for _ in range(3)] == ["hot~1"] * 3


def test_every_queue_is_asked_first_now_and_then_so_that_none_starves() -> None:
    served = Served(FOUR)
    first = [served.round()[0] for _ in range(3 * EVERY)]
    assert Counter(first) == {"hot~0": 3 * (EVERY - 1), "hot~1": 1, "hot~2": 1, "hot~3": 1}


def test_the_queue_that_rang_is_asked_first_for_nobody_else_will_come() -> None:
    served = Served(FOUR)
    assert served.round("hot~3") == ("hot~3", "hot~0")
    assert served.round() == ("hot~0", "hot~3"), "it may have more"
    assert served.round("hot~0")[0] == "hot~0"


def test_no_bell_drowns_the_others_but_that_of_home() -> None:
    served = Served(FOUR)
    orders = [served.bells() for _ in range(3)]
    assert {order[0] for order in orders} == {"hot~0"}
    assert {order[1] for order in orders} == set(FOUR[1:])
    assert Served(FOUR[:2]).bells() == FOUR[:2]


def test_other_shards_and_other_pools_are_told_apart() -> None:
    served = Served(("hot~0", "hot~1", "cold"))
    assert [served.away(queue) for queue in served.queues] == [0, 1, 2]


def test_one_queue_is_asked_and_reaped_alone() -> None:
    served = Served(["small"])
    assert {served.round() for _ in range(2 * EVERY)} == {("small",)}
    assert {served.to_reap() for _ in range(4)} == {("small",)}


def test_all_queues_are_reaped_in_turn() -> None:
    served = Served(FOUR)
    reaped = Counter(queue for _ in range(12) for queue in served.to_reap())
    assert reaped == {"hot~0": 12, "hot~1": 2, "hot~2": 2, "hot~3": 2}


def test_shards_are_seen_as_one_pool_with_each_worker_once() -> None:
    one = view("hot~0", record("a", home="hot~0", busy=3), record("b", home="hot~1", busy=0), run_ms=100.0)
    two = view("hot~1", record("a", home="hot~0", busy=0), record("b", home="hot~1", busy=5), run_ms=300.0)
    seen = merged("hot", [one, two])
    assert {(worker.worker_id, worker.busy_slots) for worker in seen.workers} == {("a", 3), ("b", 5)}
    assert (seen.waiting, seen.delayed, seen.running, seen.promoted) == ([2, 0, 4, 0], 2, 6, 2)
    assert seen.mean_run_s == 0.2
    assert [(shard.queue, shard.waiting, shard.running) for shard in seen.shards] == [
        ("hot~0", 4, 3),
        ("hot~1", 4, 3),
    ]


def test_a_pool_of_which_one_shard_is_paused_is_shown_as_paused() -> None:
    assert merged("hot", [view("hot~0"), view("hot~1", paused=1.0)]).paused
