"""Prefixes that vLLM had computed before: told to the caller, kept in the job's record, kept apart between tenants."""

from typing import Any

from tests.vllm.conftest import Front

BLOCK_TOKENS = 128  # vLLM's on a CPU; it shares whole blocks only
RULES = " ".join(
    f"Rule {number}: answer politely, and never quote rule {number + 7}." for number in range(110)
)


def ask(topic: str, question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": f"{topic}. {RULES}"}, {"role": "user", "content": question}]


def test_cached_tokens_reach_the_caller_and_the_record(front: Front, sdk: Any) -> None:
    first, again = (
        sdk.chat.completions.with_raw_response.create(
            model="v", messages=ask("Rivers", question), max_tokens=4
        )
        for question in ("Which is long?", "Which is wide?")
    )
    assert first.parse().usage.prompt_tokens_details.cached_tokens == 0
    usage = again.parse().usage
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached == (usage.prompt_tokens - 20) // BLOCK_TOKENS * BLOCK_TOKENS > 1000
    assert front.job(again.headers["x-headway-job"])["usage"]["cached_tokens"] == cached


def test_stream_tells_its_cached_tokens(front: Front, sdk: Any) -> None:
    asked = {"model": "v", "messages": ask("Lakes", "Which is deep?"), "max_tokens": 4, "stream": True}
    first, again = (
        list(sdk.chat.completions.create(**asked, stream_options={"include_usage": True}))[-1].usage
        for _ in range(2)
    )
    assert first.prompt_tokens_details.cached_tokens == 0
    assert again.prompt_tokens_details.cached_tokens > 1000


def test_salt_of_the_callers_keeps_prefixes_apart(sdk: Any) -> None:
    def cached(salt: str) -> int:
        answer = sdk.chat.completions.create(
            model="v",
            messages=ask("Seas", "Which is salty?"),
            max_tokens=4,
            extra_body={"cache_salt": salt},
        )
        return int(answer.usage.prompt_tokens_details.cached_tokens)

    assert cached("one") == 0
    assert cached("one") > 1000
    assert cached("two") == 0
