"""The vocabulary: ids that sort by age and carry their pool, classes, statuses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidJob
from broker.job import (
    ALPHABET,
    JOB_ID,
    POOL_NAME,
    ServiceClass,
    Status,
    base32,
    derived_job_id,
    new_job_id,
    pool_of,
)


def test_ids_are_new_and_sort_as_they_were_made() -> None:
    """Within a process, so that ties between equal scores are first in, first out."""
    ids = [new_job_id("small") for _ in range(5000)]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)


@given(st.from_regex(POOL_NAME, fullmatch=True))
def test_id_carries_its_pool(pool: str) -> None:
    assert pool_of(new_job_id(pool)) == pool
    assert pool_of(derived_job_id(pool, seed=7)) == pool


@given(st.integers(0, 2**130 - 1), st.integers(0, 2**130 - 1))
def test_derived_ids_are_equal_as_their_seeds_are(one: int, other: int) -> None:
    assert (derived_job_id("p", seed=one) == derived_job_id("p", seed=other)) == (one == other)


@given(st.integers(0, 2**50 - 1), st.integers(0, 2**50 - 1))
def test_base32_sorts_as_it_counts(one: int, other: int) -> None:
    assert (base32(one, 10) < base32(other, 10)) == (one < other)
    assert set(base32(one, 10)) <= set(ALPHABET)


@given(st.text(max_size=60).filter(lambda text: not JOB_ID.fullmatch(text)))
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        pool_of(text)
    assert refused.value.param == "id"


@pytest.mark.parametrize("pool", ["", "a b", "{a}", "a}", "-a", "a" * 65, "a/b", "a:b", "ä", "a\n"])
def test_pool_names_cannot_break_a_key(pool: str) -> None:
    assert not POOL_NAME.fullmatch(pool)
    with pytest.raises(InvalidJob):
        pool_of(f"job_{'0' * 26}.{pool}")


def test_id_says_what_it_must_look_like() -> None:
    with pytest.raises(InvalidJob, match=re.escape("job_<26 characters>.<pool>")):
        pool_of("chatcmpl-123")
    assert JOB_ID.fullmatch(new_job_id("a.b-c_d"))


@pytest.mark.parametrize("text", ["P2", "p2", " P2 "])
def test_class_is_read_in_either_case(text: str) -> None:
    assert ServiceClass.parse(text) is ServiceClass.P2


@pytest.mark.parametrize("text", ["", "P4", "2", "urgent", "P0,P1", "__class__"])
def test_unknown_class_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        ServiceClass.parse(text)
    assert refused.value.param == "class"


def test_lower_classes_count_higher() -> None:
    assert ServiceClass.P0 < ServiceClass.P1 < ServiceClass.P2 < ServiceClass.P3


def test_what_is_final() -> None:
    """`escalated` is final for a first pass, and never what a caller sees."""
    seen = {"succeeded", "failed", "cancelled", "expired"}
    assert {status for status in Status if status.terminal} == seen | {"escalated"}
