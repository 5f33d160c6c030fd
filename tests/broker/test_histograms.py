"""Times in buckets: where each falls, how several are added, and what a percentile read off them says."""

import pytest

from broker.histograms import BOUNDS, Histogram, added, bucket_of, empty


def counted(*seconds: float) -> Histogram:
    found = [0] * len(empty("ttft").counts)
    for each in seconds:
        found[bucket_of("ttft", each)] += 1
    return Histogram(BOUNDS["ttft"], tuple(found), sum(seconds))


@pytest.mark.parametrize("what", BOUNDS)
def test_a_time_on_a_bound_is_in_its_bucket_as_prometheus_le_has_it(what: str) -> None:
    first, second, *_, last = BOUNDS[what]
    assert [bucket_of(what, s) for s in (0.0, first, first + 1e-9, second)] == [0, 0, 1, 1]
    assert bucket_of(what, last + 1) == len(BOUNDS[what])


@pytest.mark.parametrize("what", BOUNDS)
def test_bounds_rise(what: str) -> None:
    assert sorted(set(BOUNDS[what])) == list(BOUNDS[what])


def test_counts_and_sums_are_added_up() -> None:
    both = added("ttft", [counted(0.01, 0.3), counted(0.3, 1000.0)])
    assert both.sum_s == pytest.approx(1000.61)
    assert (both.count, both.counts[0], both.counts[-1]) == (4, 1, 1)
    assert added("ttft", []) == empty("ttft")


def test_cumulative_counts_end_with_all_at_infinity() -> None:
    found = counted(0.01, 0.04, 1000.0).cumulative
    assert found[:2] == [(0.025, 1), (0.05, 2)]
    assert found[-1] == (float("inf"), 3)


def test_a_quantile_lies_straight_between_the_bounds_of_its_bucket() -> None:
    """Ten times between 0.1 and 0.2: the median is taken to be in the middle, as PromQL's histogram_quantile does."""
    assert counted(*[0.15] * 10).quantile(0.5) == pytest.approx(0.15)
    assert counted(*[0.15] * 10).quantile(1.0) == pytest.approx(0.2)
    assert counted(*[0.01] * 9, 7.0).quantile(0.95) == pytest.approx(7.5)


def test_a_quantile_above_the_last_bound_is_that_bound_and_of_nothing_nothing() -> None:
    assert counted(1000.0).quantile(0.5) == BOUNDS["ttft"][-1]
    assert empty("ttft").quantile(0.5) is None
