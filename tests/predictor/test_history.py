"""One template, one key: what varies between its requests does not count, what makes another of it does."""

from typing import Any

import pytest

from predictor.history import template_key


def asked(text: str, *, system: str = "You sort mail.", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}], **more}


def test_fillings_of_one_template_share_a_key() -> None:
    first = template_key(asked("Summarise the ticket below in two lines: 4711, the printer is on fire"))
    other = template_key(asked("summarise the ticket below in two lines: 12, the door of the lift is stuck"))
    assert first == other


@pytest.mark.parametrize(
    "other",
    [
        asked("Translate the ticket below into French: 4711"),
        asked("Summarise the ticket below in two lines: 4711", system="You write poems."),
        asked("Summarise the ticket below in two lines: " + "long " * 400),
        asked("Summarise the ticket below in two lines: 4711", response_format={"type": "json_object"}),
        asked("Summarise the ticket below in two lines: 4711", tools=[{"function": {"name": "f"}}]),
    ],
)
def test_another_template_has_another_key(other: dict[str, Any]) -> None:
    assert template_key(asked("Summarise the ticket below in two lines: 4711")) != template_key(other)


def test_keys_are_stable_between_processes() -> None:
    """They are names in a store that outlives the process: a changed key forgets every history."""
    assert template_key(asked("Summarise the ticket")) == "cc4e0130aa17fa4a"
    assert len(template_key({})) == 16
