"""The simulated engine as its clients see it: through the openai package, and as plain HTTP where that hides something."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.conditions import wait_until
from tests.workers.engines.sim.conftest import Start
from workers.engines.sim.failures import Failures

MESSAGES = [{"role": "user", "content": "Tell me a story about a queue. " * 8}]


async def test_a_chat_answer_has_text_usage_and_a_reason_to_end(start: Start) -> None:
    sdk = (await start()).sdk
    answer = await sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=5)
    (choice,) = answer.choices
    assert (answer.object, answer.model, choice.finish_reason) == ("chat.completion", "m", "length")
    assert choice.message.role == "assistant"
    assert len(choice.message.content.split()) == 5
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


async def test_a_stream_says_the_same_as_the_whole_answer(start: Start) -> None:
    sdk = (await start()).sdk
    whole = await sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=9)
    stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=9, stream=True)
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 9 + ["length"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_stream_ends_with_usage_if_that_is_asked_for(start: Start) -> None:
    sdk = (await start()).sdk
    stream = await sdk.completions.create(
        model="m", prompt="Once", max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 3)


async def test_a_chat_stream_has_no_event_before_its_first_token(start: Start) -> None:
    served = await start(failures=Failures(hang_after=1))  # and then no token comes any more
    with pytest.raises(httpx.ReadTimeout):
        await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 9}, timeout=0.3)
    body = {"messages": MESSAGES, "stream": True}
    async with served.http.stream("POST", "/v1/chat/completions", json=body, timeout=0.3) as response:
        with pytest.raises(httpx.ReadTimeout):
            await anext(response.aiter_bytes())


async def test_the_second_time_the_prompt_is_cached_and_under_another_salt_it_is_not(start: Start) -> None:
    served = await start()

    async def cached(salt: str) -> int:
        answer = await served.sdk.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=1, extra_body={"cache_salt": salt}
        )
        tokens: int = answer.usage.prompt_tokens_details.cached_tokens
        return tokens

    assert await cached("a") == 0
    assert await cached("a") > 0
    assert await cached("b") == 0


async def test_a_conversation_is_cached_up_to_the_end_of_the_last_answer(start: Start) -> None:
    sdk = (await start()).sdk
    first = await sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=40)
    more = [*MESSAGES, {"role": "assistant", "content": first.choices[0].message.content}]
    more.append({"role": "user", "content": "Go on."})
    second = await sdk.chat.completions.create(model="m", messages=more, max_tokens=1)
    known = first.usage.total_tokens - 1  # the last token was said, but nothing followed it
    assert second.usage.prompt_tokens_details.cached_tokens == known // 16 * 16


async def test_several_prompts_and_answers_are_numbered_through(start: Start) -> None:
    sdk = (await start()).sdk
    answer = await sdk.completions.create(model="m", prompt=["one", [5, 6, 7]], n=2, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) == 4
    assert answer.usage.completion_tokens == 16
    stream = await sdk.completions.create(
        model="m", prompt=["one", [5, 6, 7]], n=2, max_tokens=4, stream=True
    )
    texts = ["", "", "", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


async def test_answers_end_by_themselves_around_the_mean_unless_told_otherwise(start: Start) -> None:
    sdk = (await start(max_num_seqs=64)).sdk

    async def ask(n: int, **extra: Any) -> Any:
        prompt = f"question {n}"
        return await sdk.completions.create(model="m", prompt=prompt, max_tokens=500, extra_body=extra)

    free = await asyncio.gather(*(ask(n) for n in range(60)))
    lengths = [answer.usage.completion_tokens for answer in free]
    assert 14 < sum(lengths) / len(lengths) < 28, "the mean was set to 20"
    assert {answer.choices[0].finish_reason for answer in free} == {"stop"}
    least = await asyncio.gather(*(ask(n, min_tokens=50) for n in range(5)))
    assert all(answer.usage.completion_tokens >= 50 for answer in least)
    forced = await ask(1, ignore_eos=True)
    assert (forced.usage.completion_tokens, forced.choices[0].finish_reason) == (500, "length")


async def test_log_probabilities_come_for_each_token_where_they_are_wanted(start: Start) -> None:
    sdk = (await start()).sdk
    chat = await sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=3, logprobs=True)
    content = chat.choices[0].logprobs.content
    assert "".join(item.token for item in content) == chat.choices[0].message.content
    assert all(-3 <= item.logprob <= 0 for item in content)
    text = await sdk.completions.create(model="m", prompt="x", max_tokens=3, logprobs=1)
    assert len(text.choices[0].logprobs.token_logprobs) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_gives_its_place_and_blocks_back(start: Start, stream: bool) -> None:
    served = await start(speed=0.1)
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": stream}
    asking = asyncio.create_task(served.http.post("/v1/completions", json=body))
    await wait_until(lambda: served.replica.running == 1)
    asking.cancel()
    await wait_until(lambda: not served.replica.busy and served.replica.pool.used == 0)
    samples = await served.metrics()
    assert [v for name, v in samples.items() if "request_success_total" in name and "abort" in name] == [1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": "x " * 1100, "max_tokens": 1}, "maximum context length is 1024 tokens"),
        ({"prompt": "x", "max_tokens": 1024}, "maximum context length is 1024 tokens"),
        ({"prompt": "x", "priority": 1}, "Got priority 1 but Priority scheduling is not enabled."),
        ({"prompt": "x", "stream_options": {}}, "Stream options can only be defined when `stream=True`."),
        ({"prompt": {}}, "prompt must be"),
        ({"prompt": []}, "prompt must be"),
        ({"prompt": "x", "n": 0}, "n must be"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens must be an integer"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be at least 1"),
        ({"prompt": "x", "cache_salt": 5}, "cache_salt"),
        ([], "must be a JSON object"),
    ],
)
async def test_a_request_at_fault_is_refused_in_vllms_shape(start: Start, body: Any, words: str) -> None:
    response = await (await start()).http.post("/v1/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (400, "BadRequestError", 400)
    assert words in error["message"]


async def test_what_is_no_json_no_chat_or_another_model_is_refused(start: Start) -> None:
    served = await start()
    assert (await served.http.post("/v1/completions", content=b"{")).status_code == 400
    assert (await served.http.post("/v1/chat/completions", json={"messages": []})).status_code == 400
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await served.sdk.completions.create(model="other", prompt="x")


async def test_priorities_order_the_waiting_where_the_policy_is_priority(start: Start) -> None:
    served = await start(policy="priority", max_num_seqs=1, speed=0.1)
    order: list[str] = []

    async def ask(name: str, priority: int) -> None:
        body = {"prompt": name, "max_tokens": 20, "ignore_eos": True, "priority": priority}
        await served.http.post("/v1/completions", json=body)
        order.append(name)

    first = asyncio.create_task(ask("first", 0))
    await wait_until(lambda: served.replica.running == 1)
    later = asyncio.create_task(ask("later", 9))
    await wait_until(lambda: served.replica.waiting == 1)
    await asyncio.gather(first, later, ask("urgent", -3))
    assert order == ["first", "urgent", "later"]


async def test_health_models_and_metrics_are_vllms(start: Start) -> None:
    served = await start()
    await served.sdk.completions.create(model="m", prompt="a b c d " * 20, max_tokens=4)
    assert (await served.http.get("/health")).status_code == 200
    (model,) = (await served.http.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"], model["owned_by"]) == ("m", 1024, "vllm")
    samples = await served.metrics()
    expected = {
        "vllm:num_requests_running{}": 0,
        "vllm:num_requests_waiting{}": 0,
        "vllm:kv_cache_usage_perc{}": 0,
        "vllm:prefix_cache_queries_total{}": 82,
        "vllm:prefix_cache_hits_total{}": 0,
        "vllm:num_preemptions_total{}": 0,
        "vllm:prompt_tokens_total{}": 82,
        "vllm:generation_tokens_total{}": 4,
        "vllm:time_to_first_token_seconds_count{}": 1,
        "vllm:inter_token_latency_seconds_count{}": 3,
        "vllm:e2e_request_latency_seconds_count{}": 1,
        "vllm:iteration_tokens_total_count{}": 4,
        "vllm:iteration_tokens_total_sum{}": 85,
    }
    assert {name: samples[name] for name in expected} == expected
    assert 0 < samples["headway_sim_busy_seconds_total"] < 60
    (config,) = [name for name in samples if name.startswith("vllm:cache_config_info")]
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="256"' in config


async def test_metrics_show_what_runs_and_waits_now(start: Start) -> None:
    served = await start(speed=0.1, max_num_seqs=1)
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True}
    asking = [asyncio.create_task(served.http.post("/v1/completions", json=body)) for _ in range(2)]
    await wait_until(lambda: served.replica.waiting == 1 and served.replica.running == 1)
    samples = await served.metrics()
    assert samples["vllm:num_requests_running{}"] == samples["vllm:num_requests_waiting{}"] == 1
    assert samples["vllm:kv_cache_usage_perc{}"] > 0
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
