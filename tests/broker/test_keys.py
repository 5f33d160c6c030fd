"""Names of keys: one hash tag a pool, and which of them may live for ever."""

import pytest

from broker.job import derived_job_id
from broker.keys import PERMANENT_SUFFIXES, PoolKeys, is_permanent

K = PoolKeys("small")
JOB = derived_job_id("small", seed=1)
OF_A_JOB = [K.job(JOB), K.payload(JOB), K.result(JOB), K.output(JOB), K.history(JOB)]


def test_every_key_has_the_pools_hash_tag() -> None:
    names = [*OF_A_JOB, *K.all_ready, K.fair("t"), K.worker("w"), K.control, K.named("delayed")]
    assert {name[name.index("{") : name.index("}") + 1] for name in names} == {"{small}"}
    assert len(set(names)) == len(names)


def test_keys_of_a_pool_are_told_from_those_of_another_with_a_like_name() -> None:
    assert not K.job(JOB).startswith(PoolKeys("smal").prefix)
    assert PoolKeys("small.x").prefix != K.prefix


@pytest.mark.parametrize("suffix", PERMANENT_SUFFIXES)
def test_sets_of_a_pool_are_permanent(suffix: str) -> None:
    assert is_permanent(K.named(suffix))


@pytest.mark.parametrize(
    "name",
    [
        *OF_A_JOB,
        K.fair("t"),
        K.fair("ready:0"),
        K.worker("w"),
        "hw:{small}:reaped",
        "hw:reply:1-a",
        "stray",
        "",
    ],
)
def test_everything_else_is_not(name: str) -> None:
    assert not is_permanent(name)
