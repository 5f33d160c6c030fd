"""Cutting bytes into lines, whatever the chunks; ids that stay the same."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import Config, ModelConfig
from broker.job import pool_of, queue_of
from broker.request_checks import CHAT
from broker.shards import Shards, queues_of
from workers.batch.lines import MAX_LINE_BYTES, Flaw, Line, LineRules, Request, line_job_id, split_lines

CONFIG = Config(models=(ModelConfig(pool="small"),))

PIECES = st.lists(st.sampled_from([b"a", b"\n", b" ", b"\r\n", b"long", b""]), max_size=30)


async def chunks(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def lines(pieces: list[bytes]) -> list[Line]:
    return [line async for line in split_lines(chunks(pieces))]


@given(PIECES)
async def test_lines_are_those_of_the_whole_wherever_it_is_cut(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    wanted = [(n, text) for n, text in enumerate(whole.split(b"\n"), 1) if text.strip()]
    found = await lines(pieces)
    assert [(line.number, line.data) for line in found] == wanted
    assert [whole[line.start : line.end] for line in found] == [text for _, text in wanted]


async def test_a_line_beyond_the_limit_is_measured_and_not_kept() -> None:
    size = MAX_LINE_BYTES + 1
    found = await lines([b"a\n", b"x" * size, b"y\nb", b"\n", b"z" * MAX_LINE_BYTES, b"\n"])
    assert [(line.number, line.start, line.end) for line in found] == [
        (1, 0, 1),
        (2, 2, 2 + size + 1),
        (3, size + 4, size + 5),
        (4, size + 6, size + 6 + MAX_LINE_BYTES),
    ]
    assert [line.data is None for line in found] == [False, True, False, False]


async def test_a_slice_is_read_as_part_of_the_file() -> None:
    found = [line async for line in split_lines(chunks([b"c\nd"]), start=4, number=3)]
    assert [(line.number, line.start, line.data) for line in found] == [(3, 4, b"c"), (4, 6, b"d")]


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"max_tokens": -1}, "invalid_value", "max_tokens must be between 1 and 1000000, not -1"),
        ({"max_tokens": "12"}, "invalid_type", "max_tokens must be an integer, not str of 2"),
        ({"messages": []}, "invalid_type", "messages must be a list of at least one message, not list of 0"),
        ({"messages": None}, "missing_required_parameter", "messages is required"),
        ({"model": 3}, "invalid_type", "model must be a string, not 3"),
        ({"stream": "yes"}, "invalid_type", "stream must be true or false, not str of 3"),
    ],
)
def test_a_bad_body_is_refused_in_the_words_of_the_live_api(
    changes: dict[str, Any], code: str, message: str
) -> None:
    """What the live API makes of the same errors: tests/api/test_bad_input.py."""
    body = {"model": "small", "messages": [{"role": "user", "content": "hi"}]} | changes
    data = orjson.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body})
    flaw = LineRules(CHAT, CONFIG).check(Line(1, 0, len(data), data), repeated=False)
    assert flaw == Flaw(code, f"line 1: {message}", "a")


@pytest.mark.parametrize(("share", "pool"), [(0.0, "small"), (1.0, "large")])
def test_a_route_sends_a_line_where_its_target_says(share: float, pool: str) -> None:
    route = {"name": "auto", "small": "small", "large": "large", "target": {"share_large": share}}
    models = [{"pool": "small"}, {"pool": "large"}]
    config = Config.model_validate({"models": models, "routes": [route]})
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
    data = orjson.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body})
    request = LineRules(CHAT, config).check(Line(1, 0, len(data), data), repeated=False)
    assert isinstance(request, Request)
    assert request.aim.pool == pool
    assert request.aim.heir == ("large" if pool == "small" else "")


def test_a_line_has_the_same_job_whenever_it_is_asked_again() -> None:
    first = line_job_id("batch_a", 1, pool="small")
    assert first == line_job_id("batch_a", 1, pool="small")
    assert pool_of(first) == "small"
    ids = {line_job_id(batch, n, pool="small") for batch in ("batch_a", "batch_b") for n in range(1000)}
    assert len(ids) == 2000


def test_lines_spread_over_the_shards_of_their_pool_and_stay_there() -> None:
    shards = Shards({"hot": 4})
    ids = [line_job_id("batch_a", number, pool="hot", shards=shards) for number in range(400)]
    assert ids == [line_job_id("batch_a", number, pool="hot", shards=shards) for number in range(400)]
    queues = [queue_of(job_id) for job_id in ids]
    assert all(80 < queues.count(queue) < 120 for queue in queues_of("hot", 4))
    assert {pool_of(job_id) for job_id in ids} == {"hot"}
