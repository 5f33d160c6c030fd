"""Load, read from the metrics of each kind of server."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engines import recorded
from workers.engine import EngineLoad
from workers.engines.dialects import DIALECTS
from workers.engines.scrape import read_load

VLLM = DIALECTS["vllm"]


def test_vllm_recorded() -> None:
    """Two run and one waits; `…_by_reason` repeats the one that waits."""
    load = read_load(VLLM, recorded.text("vllm/metrics_running.txt"))
    assert load.kv_used_share == pytest.approx(0.00551, abs=1e-5)
    assert load == EngineLoad(2, 1, load.kv_used_share, 46_592, 3328, 7306, 0, 128)


def test_llamacpp_recorded() -> None:
    """33 tokens of a prompt, 24 of them cached, and 65 of the answer, in a cache that holds 1,024."""
    load = read_load(
        DIALECTS["llamacpp"],
        recorded.text("llamacpp/metrics_running.txt"),
        slots=recorded.page("llamacpp/slots_running.json"),
        kv_tokens=1024,
    )
    assert load == EngineLoad(1, 0, 98 / 1024, 1024, 54, 95, None)


def test_sglang_counts_each_data_parallel_rank_once() -> None:
    """Ranks of one tensor say the same; 300,000 tokens half used and 100,000 a tenth are 0.4 of all."""
    load = read_load(DIALECTS["sglang"], recorded.text("sglang/metrics_running.txt"))
    assert load == EngineLoad(4, 2, pytest.approx(0.4), 400_000, 300, 1000, 4)  # type: ignore[arg-type]


def test_tgi_tells_tokens_in_use_and_at_most() -> None:
    load = read_load(DIALECTS["tgi"], recorded.text("tgi/metrics_running.txt"))
    assert load == EngineLoad(4, 7, 0.25, 60_000)


def test_counts_of_several_engines_are_summed_and_shares_averaged() -> None:
    page = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 1.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 1e+03
"""
    assert read_load(VLLM, page) == EngineLoad(7, 2, 0.5, None, None, None, 3)


def test_blocks_are_told_for_all_engines_and_tokens_for_each() -> None:
    old = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="%d"} 1.0\n'
    new = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",kv_cache_size_tokens="8000",engine="%d"} 1\n'
    for line in (old, new):
        assert read_load(VLLM, line % 0 + line % 1).kv_total_tokens == 16_000
    assert read_load(VLLM, old % 0).kv_total_tokens == 16_000
    assert read_load(VLLM, new % 0).kv_total_tokens == 8_000


def test_shares_weigh_as_much_as_their_engines_hold() -> None:
    size = 'vllm:cache_config_info{kv_cache_size_tokens="%d",engine="%d"} 1\n'
    used = 'vllm:kv_cache_usage_perc{engine="%d"} %s\n'
    page = size % (1000, 0) + size % (3000, 1) + used % (0, 1.0) + used % (1, 0.0)
    assert read_load(VLLM, page).kv_used_share == 0.25


@pytest.mark.parametrize(
    ("page", "load"),
    [
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', EngineLoad(None, None, 0.5)),
        ("vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.5\n", EngineLoad(None, None, 0.5)),
        (
            "vllm:gpu_prefix_cache_hits_total 3\nvllm:gpu_prefix_cache_queries_total 4\n",
            EngineLoad(prefix_hit_tokens=3, prefix_query_tokens=4),
        ),
        (
            'vllm:num_requests_waiting_by_reason{reason="capacity, now"} 2\n'
            'vllm:num_requests_waiting_by_reason{reason="deferred"} 1\n',
            EngineLoad(waiting=3),
        ),
    ],
)
def test_names_of_other_versions_are_read_where_the_usual_ones_are_missing(
    page: str, load: EngineLoad
) -> None:
    assert read_load(VLLM, page) == load


@pytest.mark.parametrize(
    "page",
    [
        "",
        "vllm:num_requests_running_other 3\n",
        "# vllm:num_requests_running 3\n",
        " vllm:num_requests_running 3\n",
        "vllm:num_requests_running NaN\n",
        "vllm:num_requests_running +Inf\n",
        "vllm:num_requests_running three\n",
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n',
        "\x00\xff",
    ],
)
def test_what_is_not_said_is_unknown_and_not_zero(page: str) -> None:
    assert replace(read_load(VLLM, page), kv_page_tokens=None) == EngineLoad()
    assert read_load(DIALECTS["openai"], page) == EngineLoad()


def test_a_brace_inside_a_label_ends_nothing() -> None:
    page = 'vllm:num_requests_running{model_name="a}b{c\\" d",engine="0"} 3\n'
    assert read_load(VLLM, page).running == 3


def test_slots_say_nothing_where_the_size_of_the_cache_is_unknown() -> None:
    """In a unified cache each slot claims all of it, so that their sizes add up to too much."""
    slots = recorded.page("llamacpp/slots_running.json")
    assert read_load(DIALECTS["llamacpp"], "", slots=slots).kv_used_share is None


LINES = st.lists(
    st.sampled_from(
        [
            "vllm:num_requests_running 3",
            'vllm:num_requests_running{engine="0"} -1e300',
            'vllm:kv_cache_usage_perc{engine="0"} 7',
            "vllm:kv_cache_usage_perc -1",
            'vllm:cache_config_info{block_size="0",num_gpu_blocks="0"} 1',
            'vllm:cache_config_info{engine="0",kv_cache_size_tokens="9"} 1',
            "vllm:prefix_cache_hits_total{ 1",
            "vllm:prefix_cache_hits_total} 1",
        ]
    )
    | st.text(max_size=40)
)


@given(LINES)
def test_no_page_is_too_strange_to_be_read(lines: list[str]) -> None:
    load = read_load(VLLM, "\n".join(lines))
    assert load.kv_used_share is None or 0.0 <= load.kv_used_share <= 1.0
    assert load.kv_total_tokens is None or load.kv_total_tokens > 0


@pytest.mark.parametrize("number", ["1e308", "+Inf", "NaN", "18446744073709551616", "-1e300"])
def test_what_cannot_be_counted_is_not_known(number: str) -> None:
    """Two of them together would be infinite, and no whole number."""
    names = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_hits_total")
    page = "".join(f'{name}{{engine="{n}"}} {number}\n' for name in names for n in (0, 1))
    sizes = f'block_size="{"9" * 5000}",num_gpu_blocks="{"9" * 200}",kv_cache_size_tokens="None"'
    assert read_load(VLLM, page + f"vllm:cache_config_info{{{sizes}}} 1.0\n") == EngineLoad()
