"""Token estimates stay near what real tokenizers count, whatever the text is made of."""

import base64
import logging
from pathlib import Path
from typing import Any

import pytest

from predictor.tokens import NOTHING, Counted, Estimated, estimate, load, makeup

# (text, tokens): the mean of what cl100k and Qwen's vocabulary count.
COUNTED = {
    "english": (
        "Queues smooth bursts: while every slot is busy, new requests wait in order, and the scheduler takes the "
        "shortest one first so that the average waiting time stays small.",
        34.0,
    ),
    "chinese": (
        "请把下面的文章翻译成英文，并用三句话总结它的主要内容。注意保留所有的人名和地名，不要添加原文没有的信息。",
        40.5,
    ),
    "code": (
        "def claim(pool, now):\n    job = pool.ready.pop()\n    if job is None or job.deadline <= now:\n"
        "        return None\n    job.token += 1\n    pool.leases[job.id] = (job.token, now + 30.0)\n    return job\n",
        60.5,
    ),
    "base64": (base64.b64encode(bytes(range(256))).decode(), 255.0),
    "json": (
        '{"user": {"id": 4711, "name": "Ada", "tags": ["admin", "ops"]}, "items": [{"sku": "A-1", "price": 9.5}, '
        '{"sku": "B-2", "price": 12.0}]}',
        63.5,
    ),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_estimate_is_within_a_fifth_of_two_real_tokenizers(kind: str) -> None:
    text, tokens = COUNTED[kind]
    assert estimate(makeup(text.encode())) == pytest.approx(tokens, rel=0.2)


def test_estimate_of_a_long_text_follows_from_its_windows() -> None:
    text = COUNTED["english"][0].encode() * 200
    assert estimate(makeup(text)) == pytest.approx(200 * 34, rel=0.2)


def test_base64_is_told_from_text() -> None:
    made = {kind: makeup(text.encode()).base64 for kind, (text, _) in COUNTED.items()}
    assert made == {kind: kind == "base64" for kind in COUNTED}


def test_makeup_counts_wide_characters_not_their_bytes() -> None:
    assert makeup("汉字ab".encode()).wide == pytest.approx(2 / 8)
    assert makeup(b"").size == 0
    assert estimate(NOTHING) == 0


def test_a_pools_factor_scales_the_estimate() -> None:
    made = makeup(b"one two three")
    assert Estimated(2.0).tokens("one two three", made) == pytest.approx(2 * estimate(made))


class Words:
    """A tokenizer of the `tokenizers` package, as far as it is used: a token a word."""

    def __init__(self) -> None:
        self.longest = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        self.longest = max(self.longest, len(text))
        return type("Encoding", (), {"ids": text.split()})


def test_a_real_tokenizer_counts_short_texts_exactly_and_carries_a_part_over_to_long_ones() -> None:
    words = Words()
    count, long = Counted(words), "seven words are in every line here\n" * 300
    assert count.tokens("four words of text", makeup(b"four words of text")) == 4
    assert count.tokens(long, makeup(long.encode())) == pytest.approx(2100, rel=0.1)
    assert words.longest <= 512


def test_a_tokenizer_file_that_cannot_be_used_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = tmp_path / "tokenizer.json"
    wrong.write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert load(wrong, factor=1.5) == Estimated(1.5)
        assert load(None) == Estimated()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
