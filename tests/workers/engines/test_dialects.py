import pytest

from workers.engine import EngineLimits, EngineLoad
from workers.engines.dialects import DIALECTS, first_model, read_limits, read_load

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 1e+03
"""


def test_counts_of_several_engines_are_summed_and_shares_averaged() -> None:
    assert read_load(DIALECTS["vllm"], VLLM, slots=None) == EngineLoad(7, 2, 0.5)


def test_an_older_name_is_read_where_the_new_one_is_missing() -> None:
    old = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
    assert read_load(DIALECTS["vllm"], old, slots=None) == EngineLoad(None, None, 0.5)


@pytest.mark.parametrize(
    "page", ["", "vllm:num_requests_running_other 3\n", "# vllm:num_requests_running 3\n"]
)
def test_what_is_not_said_is_unknown_and_not_zero(page: str) -> None:
    assert read_load(DIALECTS["vllm"], page, slots=None) == EngineLoad(None, None, None)
    assert read_load(DIALECTS["openai"], page, slots=None) == EngineLoad(None, None, None)


def test_metrics_without_labels_are_read() -> None:
    page = "tgi_batch_current_size 4\ntgi_queue_size 7\n"
    assert read_load(DIALECTS["tgi"], page, slots=None) == EngineLoad(4, 7, None)
    page = 'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_queue_reqs 1.0\nsglang:token_usage 0.1\n'
    assert read_load(DIALECTS["sglang"], page, slots=None) == EngineLoad(2, 1, 0.1)


def test_llamacpp_slots_give_the_share_of_tokens_in_use() -> None:
    busy = {"n_ctx": 100, "is_processing": True, "n_prompt_tokens": 30, "next_token": [{"n_decoded": 20}]}
    idle = {"n_ctx": 100, "is_processing": False, "n_prompt_tokens": 90}
    page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
    assert read_load(DIALECTS["llamacpp"], page, slots=[busy, idle]) == EngineLoad(1, 0, 0.25)


def test_limits_are_found_on_the_pages_of_each_dialect() -> None:
    models = {"data": [{"id": "m", "max_model_len": 4096}]}
    props = {"total_slots": 8, "default_generation_settings": {"n_ctx": 512}}
    info = {"max_running_requests": 48}
    assert read_limits(DIALECTS["vllm"], {"/v1/models": models}, model="m") == EngineLimits(16, 4096, "m")
    assert read_limits(DIALECTS["llamacpp"], {"/props": props}, model="m") == EngineLimits(8, 512, "m")
    pages = {"/v1/models": models, "/get_server_info": info}
    assert read_limits(DIALECTS["sglang"], pages, model="m") == EngineLimits(48, 4096, "m")
    assert read_limits(DIALECTS["tgi"], {"/info": {"max_total_tokens": 64}}, model=None) == EngineLimits(
        16, 64, None
    )


@pytest.mark.parametrize("page", [None, [], {}, {"data": []}, {"data": [{"id": 3}]}, {"data": "x"}, "text"])
def test_pages_of_an_unknown_shape_say_nothing(page: object) -> None:
    assert first_model(page) is None
    pages = dict.fromkeys(("/v1/models", "/props", "/info"), page)
    assert read_limits(DIALECTS["vllm"], pages, model=None) == EngineLimits(16, None, None)
    assert read_load(DIALECTS["llamacpp"], "", slots=page).kv_used_share is None
