"""The replica on a clock that does not wait: when things happen, reckoned by hand."""

import pytest

from tests.workers.engines.sim.hardware import Linear, request
from workers.engines.sim.replica import Replica, StepResult
from workers.engines.sim.scheduler import Limits
from workers.engines.sim.virtual import Agenda, Station


def test_actions_happen_in_the_order_of_their_times_and_never_in_the_past() -> None:
    agenda, seen = Agenda(), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, agenda.now_s))
        if name == "first":
            agenda.at(0.5, lambda: note("late"))

    for time_s, name in ((2.0, "last"), (1.0, "first"), (1.0, "second")):
        agenda.at(time_s, lambda name=name: note(name))  # type: ignore[misc]
    agenda.run(until_s=1.5)
    assert seen == [("first", 1.0), ("second", 1.0), ("late", 1.0)]
    assert agenda.now_s == 1.5
    agenda.run()
    assert seen[-1] == ("last", 2.0)


def test_a_request_joins_the_step_that_begins_after_it_came() -> None:
    agenda, ends = Agenda(), dict[str, float]()

    def note(result: StepResult) -> None:
        ends.update(dict.fromkeys(result.finished, agenda.now_s))

    station = Station(agenda, Replica(Limits(kv_tokens=1024, max_model_len=512), Linear()), on_step=note)
    agenda.at(0.0, lambda: station.add(request("a", 100, 3)))  # steps end at 2, 3 and 4 ms
    agenda.at(0.0025, lambda: station.add(request("b", 50, 1, kind=1)))  # joins the third: 1 ms + 50 x 10 us
    agenda.at(1.0, lambda: station.add(request("c", 100, 1, kind=2)))
    agenda.run()
    assert ends == pytest.approx({"a": 0.0045, "b": 0.0045, "c": 1.002})


def test_what_is_called_off_stops_the_clock_of_an_engine_with_nothing_else_to_do() -> None:
    agenda = Agenda()
    station = Station(
        agenda, Replica(Limits(kv_tokens=1024, max_model_len=512), Linear()), on_step=lambda _: None
    )
    station.add(request("a", 100, 300))
    agenda.run(until_s=0.0105)
    station.abort("a")
    agenda.run()
    assert station.replica.totals.steps == 10
