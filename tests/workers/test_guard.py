"""A first pass is held until it is worth showing, and bound once a connection may have seen it."""

import orjson
import pytest

from broker.heirs import Plan
from tests.workers.leases import lease
from tests.workers.scripted import payload
from workers.engine import CHAT, COMPLETIONS, Delta, Final
from workers.guard import LOOK_EVERY, Guard, Unfit

END = Final(b"", None, "stop")
ROLE = Delta(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}', 1)


def guard(request: dict[str, object] | None = None, *, plan: Plan | None = None, **changes: object) -> Guard:
    """Of a connection that streams."""
    changes = {"attached": True, "endpoint": CHAT, "heir": "h", "plan": str(plan or Plan()), **changes}
    return Guard(lease("j", 0, **changes), request or {})


def word(text: str) -> Delta:
    return Delta(payload(text), 1)


def sure(logprob: float) -> Delta:
    choice = {"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{"logprob": logprob}]}}
    return Delta(orjson.dumps({"choices": [choice]}), 1)


def test_nothing_is_shown_before_there_is_text_and_then_all_of_it() -> None:
    held = guard()
    assert held.take(ROLE) == []
    assert not held.is_bound
    assert held.take(word("Hi")) == [ROLE, word("Hi")]
    assert held.is_bound


@pytest.mark.parametrize("delta", [{"tool_calls": [{"index": 0}]}, {"reasoning_content": "Hm"}])
def test_a_tool_call_and_reasoning_are_shown_at_once(delta: dict[str, object]) -> None:
    chunk = Delta(orjson.dumps({"choices": [{"index": 0, "delta": delta}]}), 1)
    assert guard({"response_format": {"type": "json_object"}}).take(chunk) == [chunk]


def test_what_a_connection_may_have_seen_is_never_called_off() -> None:
    bound = guard({"response_format": {"type": "json_object"}})
    bound.take(word("{"))
    for _ in range(300):
        assert bound.take(word("no json at all, over and over ")) != []
    assert bound.end(END) == []


def test_an_answer_without_a_word_is_unfit_at_its_end() -> None:
    held = guard()
    held.take(ROLE)
    with pytest.raises(Unfit, match="empty_answer"):
        held.end(END)


def test_text_where_json_was_asked_for_is_unfit_at_its_first_letter() -> None:
    held = guard({"response_format": {"type": "json_object"}})
    with pytest.raises(Unfit, match="invalid_json"):
        held.take(word("Sure"))


def test_a_verdict_falls_on_the_window_before_anything_is_shown() -> None:
    held = guard(plan=Plan(window=2, floor=0.7))
    assert held.take(sure(-0.01)) == []
    shown = held.take(sure(-0.02))
    assert len(shown) == 2
    assert all(b"logprobs" not in delta.data for delta in shown)
    assert held.confidence == pytest.approx(0.985, abs=0.001)
    doubtful = guard(plan=Plan(window=2, floor=0.7))
    doubtful.take(sure(-1.0))
    with pytest.raises(Unfit, match="low_confidence"):
        doubtful.take(sure(-1.0))


def test_who_gives_in_shows_what_was_held_and_judges_no_more() -> None:
    held = guard(plan=Plan(window=1, floor=0.7))
    with pytest.raises(Unfit):
        held.take(sure(-1.0))
    assert len(held.give_in()) == 1
    assert held.take(word("more")) != []
    assert held.end(END) == []


def test_a_polled_job_is_judged_to_its_end_though_watchers_have_seen_it() -> None:
    polled = guard(attached=False)
    assert polled.take(word("and on ")) != []
    assert not polled.is_bound
    loop = Delta(b"\n".join([payload("and on and on ")] * LOOK_EVERY), LOOK_EVERY)
    with pytest.raises(Unfit, match="repetition"):
        polled.take(loop)


@pytest.mark.parametrize(
    ("endpoint", "asked", "own"),
    [
        (CHAT, {}, {"logprobs": True, "top_logprobs": 2}),
        (COMPLETIONS, {}, {"logprobs": 2}),
        (CHAT, {"logprobs": True}, {"logprobs": True}),
        (COMPLETIONS, {"logprobs": 0}, {"logprobs": 0}),
        (CHAT, {"logprobs": False, "seed": 1}, {"logprobs": True, "top_logprobs": 2, "seed": 1}),
    ],
)
def test_probabilities_are_asked_for_and_the_callers_own_wish_is_left(
    endpoint: str, asked: dict[str, object], own: dict[str, object]
) -> None:
    assert guard(asked, plan=Plan(window=4, floor=0.5), endpoint=endpoint).asked() == own
    assert guard(asked, endpoint=endpoint).asked() == asked
