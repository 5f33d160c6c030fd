"""What strangers send: files that are nearly batches, texts where ids and numbers belong. For tests/api/test_fuzz.py and benchmarks/fuzz.py."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.workers.batch.rig import ENDPOINT
from workers.batch.lines import MAX_LINE_BYTES

CANARY = "words-that-no-log-may-have"
BOM = b"\xef\xbb\xbf"
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    10**30,
    "",
    "x",
    "\u0000",
    "é" * 600,
    "small",
    "no-such-model",
    "GET",
    "/v1/embeddings",
    "/v1/completions",
    [],
    [[]],
    ["a", 1, None],
    [{"role": "user"}],
    [{"role": 7, "content": {"deep": [[[1]]]}}],
    {},
    {"model": "small"},
    {"": {"": {"": None}}},
]
NOT_JSON = [
    b"{",
    b'{"custom_id": "a", ',
    b"NaN",
    b'{"custom_id": "a", "body": {"temperature": NaN}}',
    b'{"custom_id": "\xff\xfe"}',
    b'{"custom_id": "\xe2\x82',  # a character that is cut
    b'{"custom_id": "\\ud800"}',
    b"\x00",
    b'{"custom_id": "a\x00b"}',
    b"[" * 3000,
    b"[" * 300 + b"]" * 300,
    b"1e999",
    b"9" * 5000,
    "\ufeff{}".encode(),
    "{}".encode("utf-16"),
    b"\x1f\x8b\x08\x00",  # gzip
]
BLANK = [b"", b" ", b"\t \r", b"\x0b\x0c"]
HUGE = b'{"custom_id": "huge", "body": "' + b"x" * MAX_LINE_BYTES + b'"}'


FIELDS = (
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "n",
    "stream",
    "temperature",
    "tools",
    "stop",
    "metadata",
)
PLACES = ("custom_id", "method", "url", "body", *(f"body.{name}" for name in FIELDS))
MISSING = object()


def request(number: int, place: str, odd: Any) -> bytes:
    """A line that is a request but for one field. Equal numbers are equal custom_ids."""
    body: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": CANARY}]}
    line: dict[str, Any] = {"custom_id": f"r{number}", "method": "POST", "url": ENDPOINT, "body": body}
    where, name = (body, place.removeprefix("body.")) if place.startswith("body.") else (line, place)
    if odd is MISSING:
        where.pop(name, None)
    elif name:
        where[name] = odd
    return json.dumps(line, ensure_ascii=False).encode()


REQUESTS = st.builds(
    request, st.integers(0, 30), st.sampled_from(("", *PLACES)), st.sampled_from((MISSING, *ODD))
)
LINES = st.one_of(
    REQUESTS,
    REQUESTS,
    st.sampled_from([*NOT_JSON, *BLANK, *(json.dumps(odd).encode() for odd in ODD)]),
    st.binary(max_size=40),
)


@st.composite
def batch_files(draw: st.DrawFn, *, most: int = 10, huge: bool = False) -> bytes:
    """A file of up to `most` lines, one of them larger than what is taken, now and then, if `huge`."""
    lines: list[bytes] = draw(st.lists(LINES, max_size=most))
    if huge and draw(st.integers(0, 15)) == 0:
        lines.insert(draw(st.integers(0, len(lines))), HUGE)
    content: bytes = draw(st.sampled_from((b"\n", b"\r\n"))).join(lines)
    content += draw(st.sampled_from((b"", b"\n")))
    if draw(st.integers(0, 5)) == 0:
        content = BOM + content
    return content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 7)) == 0 else content


def lines_of(content: bytes) -> int:
    """How many lines a batch of this file has to answer: those that are not blank, but for a BOM at its beginning."""
    return sum(bool(line.strip()) for line in content.removeprefix(BOM).split(b"\n"))


NUMBERS = st.one_of(
    st.integers(0, 2**64).map(str),
    st.sampled_from(("", "-1", "0", "9" * 19, "9" * 20, "1.5", "1e3", "٣", "0x1", " 1")),
)
PAIRS = st.tuples(NUMBERS, st.sampled_from(("-", "", "--", ":", "–")), NUMBERS).map("".join)
HEADER_TEXT = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=300
).map(str.strip)
LAST_EVENT_IDS = st.one_of(PAIRS, PAIRS, HEADER_TEXT)
AFTER = st.one_of(PAIRS, PAIRS, st.text(max_size=40))
IDS = st.one_of(
    st.text(min_size=1, max_size=60).filter(lambda text: text not in (".", "..")),  # a client takes those out
    st.sampled_from(
        (
            "job_" + "0" * 26 + ".small",
            "job_" + "0" * 26 + ".small~7",
            "job_" + "0" * 26 + ".small~100",
            "job_" + "u" * 26 + ".small",
            "job_" + "0" * 26 + "." + "a" * 65,
            "job_" + "0" * 26 + ".../x",
            "job_" + "0" * 26 + ".{small}",
            "file-" + "0" * 24,
            "batch_" + "0" * 24,
            "%2e%2e",
            "a/b",
            "*",
            "\x00",
            "x" * 5000,
        )
    ),
)
