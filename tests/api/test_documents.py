"""What documents say of cached prefixes and of what is foretold."""

import pytest

from api.documents import pool_document, predicted
from broker.fleet import PoolView, WorkerRecord
from broker.job import Forecast

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


@pytest.mark.parametrize(("chance", "shown"), [(0.0, None), (0.004, None), (0.8349, 0.83), (1.0, 1.0)])
def test_a_tool_call_is_predicted_where_one_may_come(chance: float, shown: float | None) -> None:
    document = predicted(Forecast(7, 9, 1.5, tool_call=chance), 0.25)
    assert document.get("tool_call") == shown
    assert ("tool_call" in document) == (shown is not None)
    assert (document["start_s"], document["run_s"], document["output_tokens"]) == (0.25, 1.5, 9)
