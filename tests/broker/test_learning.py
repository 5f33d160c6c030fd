"""What finished jobs leave in Redis: bounded, without text, and read as it was written."""

import time
from dataclasses import replace

import pytest

from broker import learning
from broker.connection import Pipe
from broker.errors import MemoryFull
from broker.learning import EVERYBODY, KEPT, NotAnOutcome, Outcome, read_outcome
from broker.policy import Memory
from tests.broker.jobs import KEYS, POOL, Backdoor

OUTCOME = Outcome("aaaa", (1.0, 0.5, -1.0), 1, "chat", 30, 10, 7, 1.25, 2.5, 0.125, 3, "stop", 9, 14)


async def report(pipe: Pipe, *outcomes: Outcome, memory: Memory | None = None) -> int:
    return int(await pipe.run(learning.report(POOL, outcomes, memory=memory or Memory())))


def named(key: str, tokens: int) -> Outcome:
    return replace(OUTCOME, past_key=key, output_tokens=tokens)


def test_an_outcome_comes_back_as_it_went() -> None:
    assert read_outcome(OUTCOME.dump()) == OUTCOME
    silent = replace(OUTCOME, first_s=None)
    assert read_outcome(silent.dump()) == silent


@pytest.mark.parametrize(
    "entry", [b"", b"{}", b"[]", b"[[1],[2],[3],[4]]", b"\xff", b"[[1,2,3,4],[1,2,3,4,5],[1,2,3],[null]]"]
)
def test_an_entry_of_another_version_is_no_outcome(entry: bytes) -> None:
    with pytest.raises(NotAnOutcome):
        read_outcome(entry)


async def test_pasts_are_the_last_outputs_newest_first(pipe: Pipe) -> None:
    await report(pipe, named("a", 1), named("b", 2), named("a", 3))
    await report(pipe, named("a", 4))
    found = await learning.read_pasts(pipe, POOL, keys=["a", "b", "c", EVERYBODY])
    assert found == {"a": [4, 3, 1], "b": [2], "c": [], EVERYBODY: [4, 3, 2, 1]}


async def test_a_past_keeps_so_many_outputs_and_no_more(pipe: Pipe) -> None:
    await report(pipe, *(named("a", tokens) for tokens in range(KEPT + 30)))
    (outputs,) = (await learning.read_pasts(pipe, POOL, keys=["a"])).values()
    assert outputs == [float(tokens) for tokens in range(KEPT + 29, 29, -1)]


async def test_the_pasts_that_were_used_least_lately_go_first(pipe: Pipe, backdoor: Backdoor) -> None:
    memory, a_while_ago = Memory(pasts=10), time.time_ns() // 1_000_000 - 60_000
    for number in range(30):
        await report(pipe, named(f"key {number}", 1), memory=memory)
        backdoor.ask("ZADD", KEYS.named("past_at"), a_while_ago + number, f"key {number}")
    kept = await report(pipe, named("key 30", 1), memory=memory)
    assert kept == 10
    assert backdoor.ask("HLEN", KEYS.named("pasts")) == 10
    found = await learning.read_pasts(pipe, POOL, keys=["key 1", "key 29", "key 30"])
    assert [bool(outputs) for outputs in found.values()] == [False, True, True]


async def test_a_past_that_is_not_added_to_expires(pipe: Pipe, backdoor: Backdoor) -> None:
    await report(pipe, named("old", 1))
    backdoor.ask("ZADD", KEYS.named("past_at"), 1, "old")
    await report(pipe, named("new", 1))
    assert (await learning.read_pasts(pipe, POOL, keys=["old", "new"])) == {"old": [], "new": [1]}


async def test_the_stream_is_capped_and_everything_expires_with_its_pool(
    pipe: Pipe, backdoor: Backdoor
) -> None:
    memory = Memory(outcomes=100, ttl_s=60.0)
    for _ in range(10):
        await report(pipe, *(named("a", 5) for _ in range(100)), memory=memory)
    assert backdoor.ask("XLEN", KEYS.named("learn")) <= 200
    for name in ("learn", "pasts", "past_at"):
        assert 0 < backdoor.ask("PTTL", KEYS.named(name)) <= 60_000


async def test_entries_are_read_in_order_and_only_once(pipe: Pipe) -> None:
    await report(pipe, *(named("a", tokens) for tokens in range(1, 6)))
    first = await learning.read_after(pipe, POOL, after="0")
    assert [entry.outcome.output_tokens for entry in first] == [1, 2, 3, 4, 5]
    assert await learning.read_after(pipe, POOL, after=first[-1].at) == []
    await report(pipe, *(named("a", tokens) for tokens in range(6, 10)))
    newest = await learning.read_after(pipe, POOL, after=first[-1].at, limit=2)
    assert [entry.outcome.output_tokens for entry in newest] == [
        8,
        9,
    ]  # who is too slow for all takes the newest


async def test_many_entries_are_read_page_by_page(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "PAGE", 7)
    await report(pipe, *(named("a", tokens) for tokens in range(20)))
    found = await learning.read_all(pipe, POOL, most=18)
    assert [entry.outcome.output_tokens for entry in found] == list(range(2, 20))


async def test_entries_that_cannot_be_read_are_left_out(pipe: Pipe, backdoor: Backdoor) -> None:
    await report(pipe, named("a", 1))
    backdoor.ask("XADD", KEYS.named("learn"), "*", "o", b"from the future")
    await report(pipe, named("a", 2))
    assert [e.outcome.output_tokens for e in await learning.read_after(pipe, POOL, after="0")] == [1, 2]


async def test_one_process_at_a_time_is_the_teacher(pipe: Pipe, backdoor: Backdoor) -> None:
    assert await learning.is_teacher(pipe, POOL, name="one", for_s=5)
    assert not await learning.is_teacher(pipe, POOL, name="two", for_s=5)
    backdoor.ask("PEXPIRE", KEYS.named("teacher"), 1000)
    assert await learning.is_teacher(pipe, POOL, name="one", for_s=5)
    assert backdoor.ask("PTTL", KEYS.named("teacher")) > 1000
    backdoor.ask("DEL", KEYS.named("teacher"))
    assert await learning.is_teacher(pipe, POOL, name="two", for_s=5)


async def test_nothing_is_kept_when_memory_is_full(pipe: Pipe, backdoor: Backdoor) -> None:
    await report(pipe, named("a", 1))
    backdoor.ask("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(MemoryFull):
            await report(pipe, named("a", 2))
    finally:
        backdoor.ask("CONFIG", "SET", "maxmemory", 0)
    assert await learning.read_pasts(pipe, POOL, keys=["a"]) == {"a": [1]}
