"""What the fleet's documents say of cached prefixes."""

from api.documents import pool_document
from broker.fleet import PoolView, WorkerRecord

WORKER = WorkerRecord("w", "small", "vllm at http://x", "m", 4, 1, "ready", 1, "here")


def test_prefix_hits_are_shares_of_prompt_tokens_by_pool_and_worker() -> None:
    worker = WorkerRecord(
        "v", "small", "vllm at http://x", "m", 4, 1, "ready", 1, "here", prompt_tokens=300, cached_tokens=100
    )
    view = PoolView(
        "small", [WORKER, worker], [0] * 4, 0, 0, 0, counters={"tokens_in": 400.0, "tokens_cached": 100.0}
    )
    document = pool_document(view, None)
    assert document["prefix_hit_share"] == 0.25
    assert [w["prefix_hit_share"] for w in document["workers"]] == [None, 0.3333]


def test_a_pool_that_has_answered_nothing_has_no_prefix_hits() -> None:
    assert pool_document(PoolView("small", [], [0] * 4, 0, 0, 0), None)["prefix_hit_share"] is None
