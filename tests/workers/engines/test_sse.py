import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engines import recorded
from workers.engine import Delta, EngineBroken, EngineBusy, EngineRejected, Usage
from workers.engines.sse import MAX_EVENT_BYTES, StreamParser

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def chunk(text: str, *, finish: str | None = None, index: int = 0, **fields: object) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return orjson.dumps({"choices": [choice]} | fields)


def usage_chunk(**fields: int) -> bytes:
    return orjson.dumps({"choices": [], "usage": USAGE | fields})


def wire(*payloads: bytes) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def run(parser: StreamParser, *reads: bytes) -> list[bytes]:
    """All payloads of a stream that ends after these reads."""
    deltas = [parser.feed(read) for read in reads]
    assert parser.failure is None
    deltas.append(parser.close())
    payloads = []
    for delta in deltas:
        if delta is not None:
            assert delta.count == len(delta.data.split(b"\n"))
            payloads += delta.data.split(b"\n")
    return payloads


def test_all_payloads_of_one_read_are_one_delta_as_the_engine_wrote_them() -> None:
    first, second = b'{ "choices" : [1],  "odd":true}', chunk("b")
    assert StreamParser().feed(wire(first, second)) == Delta(first + b"\n" + second, 2)


def test_an_incomplete_event_waits_for_its_rest() -> None:
    parser = StreamParser()
    data = wire(chunk("a"), chunk("b"))
    assert parser.feed(data[:-1]) == Delta(chunk("a"), 1)
    assert parser.feed(data[-1:]) == Delta(chunk("b"), 1)


@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=8),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_where_reads_are_cut_changes_nothing(texts: list[str], line_end: bytes, cuts: list[int]) -> None:
    payloads = [chunk(text) for text in texts] + [chunk("", finish="stop")]
    data = (b": ping\n\n" + wire(*payloads, usage_chunk(), b"[DONE]")).replace(b"\n", line_end)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parser = StreamParser()
    # A last lone CR could be half of a CRLF; the next byte decides, and there always is one before the end.
    reads = [data[start:end] for start, end in itertools.pairwise(places) if end > start] + [b"\n"]
    assert run(parser, *reads) == payloads
    assert (parser.done, parser.finish_reason, parser.usage) == (True, "stop", Usage(5, 3, 2))


def test_comments_other_fields_and_split_data_lines_follow_the_format() -> None:
    data = b": ping\n\nevent: message\nid: 7\ndata:{}\n\nretry: 5\n\ndata: {\ndata: }\n\n" + wire(
        chunk("", finish="stop")
    )
    assert run(StreamParser(), data) == [b"{}", b"{ }", chunk("", finish="stop")]


def test_the_usage_chunk_is_counted_and_left_out_unless_it_was_asked_for() -> None:
    data = wire(chunk("a", finish="length"), usage_chunk(), b"[DONE]")
    silent, asked = StreamParser(), StreamParser(usage_wanted=True)
    assert run(silent, data) == [chunk("a", finish="length")]
    assert run(asked, data) == [chunk("a", finish="length"), usage_chunk()]
    assert silent.usage == asked.usage == Usage(5, 3, 2)


def test_a_usage_chunk_before_the_stream_just_ends_still_arrives() -> None:
    data = wire(chunk("a", finish="length"), usage_chunk())
    assert run(StreamParser(usage_wanted=True), data) == [chunk("a", finish="length"), usage_chunk()]


def test_usage_beside_choices_stays_where_it_is() -> None:
    parser = StreamParser()
    running, last = chunk("a", usage=USAGE | {"completion_tokens": 1}), chunk("b", finish="stop", usage=USAGE)
    assert run(parser, wire(running, last)) == [running, last]
    assert parser.usage == Usage(5, 3, 2)


def test_usage_chunks_of_several_choices_become_one_with_their_sum() -> None:
    parser = StreamParser(usage_wanted=True)
    ends = [chunk("", finish="stop", index=index) for index in (0, 1)]
    data = wire(
        ends[0], usage_chunk(completion_tokens=4), ends[1], usage_chunk(completion_tokens=7), b"[DONE]"
    )
    *others, last = run(parser, data)
    assert others == ends
    assert orjson.loads(last)["usage"] == USAGE | {"completion_tokens": 11, "total_tokens": 16}
    assert parser.usage == Usage(5, 11, 2)


def test_text_that_looks_like_control_is_text() -> None:
    texts = [
        chunk('"usage": {"error": {}} [DONE]'),
        chunk("data: [DONE]\n\n"),
        chunk('"finish_reason":"stop"'),
    ]
    parser = StreamParser()
    assert parser.feed(wire(*texts)) == Delta(b"\n".join(texts), 3)
    assert (parser.done, parser.finish_reason, parser.usage) == (False, None, None)


def test_null_usage_and_null_error_pass() -> None:
    payload = chunk("a", finish="stop", usage=None, error=None)
    assert run(StreamParser(), wire(payload)) == [payload]


def test_prompt_progress_is_left_out_unless_it_was_asked_for() -> None:
    progress, end = chunk("", prompt_progress={"processed": 1}), chunk("a", finish="stop")
    assert run(StreamParser(), wire(progress, end)) == [end]
    assert run(StreamParser(progress_wanted=True), wire(progress, end)) == [progress, end]


@pytest.mark.parametrize("end", [b"", b'data: {"choices"'])
def test_a_stream_that_ends_before_its_answer_is_broken(end: bytes) -> None:
    parser = StreamParser()
    parser.feed(wire(chunk("a")) + end)
    with pytest.raises(EngineBroken, match="ended before"):
        parser.close()


def test_an_error_event_comes_after_what_was_sent_before_it() -> None:
    parser = StreamParser()
    error = b'{"error": {"code": 400, "message": "secret prompt"}}'
    assert parser.feed(wire(chunk("a"), error, chunk("b"))) == Delta(chunk("a"), 1)
    assert isinstance(parser.failure, EngineRejected)
    assert (parser.failure.status, parser.failure.body) == (400, error)
    assert "secret" not in str(parser.failure)


@pytest.mark.parametrize(
    "error",
    [
        b'{"error":{"code":500}}',
        b'{"error":"out of memory"}',
        b'{"object":"error","code":500}',
        recorded.raw("tgi/error_generation_stream.txt")[6:].strip(),
    ],
)
def test_any_other_error_event_means_broken(error: bytes) -> None:
    parser = StreamParser()
    assert parser.feed(wire(error)) is None
    assert isinstance(parser.failure, EngineBroken)


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices": [{"delta": {"content": "\xff\xfe',
        b'{"choices": [{"delta": {"content": "\xff"}}]}',
        b'{"choices": [',
        b"<html>",
    ],
)
def test_garbage_after_a_good_chunk_is_the_engines_fault_and_reaches_nobody(event: bytes) -> None:
    parser = StreamParser()
    assert parser.feed(wire(chunk("a"), event, chunk("b"))) == Delta(chunk("a"), 1)
    assert isinstance(parser.failure, EngineBroken)


def test_an_event_without_end_is_broken_before_it_fills_the_memory() -> None:
    parser = StreamParser()
    parser.feed(b"data: ")
    with pytest.raises(EngineBroken, match="more than"):
        parser.feed(b"x" * MAX_EVENT_BYTES)


@pytest.mark.parametrize(
    "error",
    [
        b'{"error":{"code":429}}',
        b'{"object":"error","message":"The request queue is full.","code":503}',
        recorded.raw("tgi/error_busy_stream.txt")[6:].strip(),
    ],
)
def test_an_event_that_says_there_is_no_room_means_busy(error: bytes) -> None:
    parser = StreamParser()
    assert parser.feed(wire(error)) is None
    assert isinstance(parser.failure, EngineBusy)


def test_tgi_rejects_a_request_inside_its_stream() -> None:
    parser = StreamParser()
    assert parser.feed(recorded.raw("tgi/error_stream.txt")) is None
    assert isinstance(parser.failure, EngineRejected)
    assert parser.failure.status == 422
