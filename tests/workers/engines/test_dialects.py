"""Limits and priorities, read from the pages of each kind of server."""

from typing import Any

import pytest

from tests.workers.engines import recorded
from workers.engine import EngineLimits
from workers.engines.dialects import DIALECTS
from workers.engines.scrape import first_model, owner_of, priority_sign, read_limits, read_load, walk


def limits(dialect: str, pages: dict[str, Any], model: str | None = None) -> EngineLimits:
    return read_limits(DIALECTS[dialect], pages, model=model)


def test_vllm_tells_the_length_of_its_model_and_no_slots() -> None:
    pages = {"/v1/models": recorded.page("vllm/models.json")}
    assert limits("vllm", pages, "smollm2") == EngineLimits(64, 8192, "smollm2")


def test_llamacpp_tells_slots_and_context_but_not_how_much_its_cache_holds_in_all() -> None:
    pages = {"/props": recorded.page("llamacpp/props.json")}
    assert limits("llamacpp", pages) == EngineLimits(2, 512, None, None)


def test_sglang_tells_what_each_of_its_engines_has() -> None:
    pages = {
        "/v1/models": recorded.page("sglang/models.json"),
        "/server_info": recorded.page("sglang/server_info.json"),
    }
    assert limits("sglang", pages, "Qwen/Qwen3-8B") == EngineLimits(96, 40960, "Qwen/Qwen3-8B", 408_000)


def test_sglang_before_it_told_what_each_engine_takes() -> None:
    info = {"max_running_requests": 48, "max_total_num_tokens": 1000, "internal_states": [{}]}
    assert limits("sglang", {"/server_info": info}) == EngineLimits(48, None, None, 1000)


def test_an_adapters_context_is_that_of_its_model() -> None:
    pages = {"/v1/models": recorded.page("sglang/models.json")}
    assert limits("sglang", pages, "my-adapter").context_tokens == 40960


def test_tgi_tells_how_many_requests_it_takes() -> None:
    pages = {"/info": recorded.page("tgi/info.json")}
    assert limits("tgi", pages) == EngineLimits(128, 4096, None)


def test_ollamas_context_is_that_of_the_model_that_is_served() -> None:
    pages = {"/api/ps": recorded.page("ollama/ps.json")}
    assert limits("ollama", pages, "smollm2:135m") == EngineLimits(1, 4096, "smollm2:135m")
    assert limits("ollama", pages, "not-loaded") == EngineLimits(1, None, "not-loaded")


def test_slots_that_no_page_tells_are_known_to_be_a_guess() -> None:
    assert not limits("vllm", {}).slots_known
    assert limits("tgi", {"/info": recorded.page("tgi/info.json")}).slots_known


@pytest.mark.parametrize("page", [None, [], {}, {"data": []}, {"data": [{"id": 3}]}, {"data": "x"}, "text"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_pages_of_an_unknown_shape_say_nothing(dialect: str, page: object) -> None:
    assert first_model(page) is None
    assert owner_of(page) == ""
    pages = dict.fromkeys(("/v1/models", "/props", "/info", "/server_info", "/api/ps"), page)
    row = DIALECTS[dialect]
    assert limits(dialect, pages) == EngineLimits(row.default_slots, None, None)
    assert read_load(row, "", slots=page, kv_tokens=100).kv_used_share in (None, 0.0)


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, "8", None])
def test_a_limit_that_is_no_positive_integer_is_unknown(value: object) -> None:
    assert limits("tgi", {"/info": {"max_total_tokens": value}}).context_tokens is None


def test_a_path_that_leads_nowhere_is_none() -> None:
    assert walk({"a": [1]}, ("a", 1)) is None
    assert walk({"a": [1]}, ("a", "b")) is None


def test_vllm_takes_low_priorities_first_and_llamacpp_none() -> None:
    assert priority_sign(DIALECTS["vllm"], {}) == 1
    for name in ("llamacpp", "tgi", "ollama", "openai"):
        assert priority_sign(DIALECTS[name], {}) == 0


@pytest.mark.parametrize(
    ("told", "sign"),
    [
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": False}, -1),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, 1),
        ({"enable_priority_scheduling": False, "schedule_low_priority_values_first": True}, 0),
        ({}, 0),
    ],
)
def test_sglang_takes_high_priorities_first_unless_it_says_otherwise(
    told: dict[str, bool], sign: int
) -> None:
    assert priority_sign(DIALECTS["sglang"], {"/server_info": told}) == sign
