"""Times in buckets: where each falls, how several are added, and what a percentile read off them says."""

import pytest

from broker.histograms import BOUNDS, Histogram, added, bucket_of, empty


def counted(*seconds: float, what: str = "ttft") -> Histogram:
    found = [0] * len(empty(what).counts)
    for each in seconds:
        found[bucket_of(what, each)] += 1
    return Histogram(BOUNDS[what], tuple(found), sum(seconds))


@pytest.mark.parametrize("what", BOUNDS)
def test_a_time_on_a_bound_is_in_its_bucket_as_prometheus_le_has_it(what: str) -> None:
    first, second, *_, last = BOUNDS[what]
    assert [bucket_of(what, s) for s in (0.0, first, first + 1e-9, second)] == [0, 0, 1, 1]
    assert bucket_of(what, last + 1) == len(BOUNDS[what])


@pytest.mark.parametrize("what", BOUNDS)
def test_bounds_rise(what: str) -> None:
    assert sorted(set(BOUNDS[what])) == list(BOUNDS[what])


def test_counts_and_sums_are_added_up() -> None:
    both = added("ttft", [counted(0.005, 0.3), counted(0.3, 10_000.0)])
    assert both.sum_s == pytest.approx(10_000.605)
    assert (both.count, both.counts[0], both.counts[-1]) == (4, 1, 1)
    assert added("ttft", []) == empty("ttft")


def test_cumulative_counts_end_with_all_at_infinity() -> None:
    found = counted(0.005, 0.008, 10_000.0).cumulative
    assert found[:2] == [(0.005, 1), (0.01, 2)]
    assert found[-1] == (float("inf"), 3)


def test_a_quantile_lies_straight_between_the_bounds_of_its_bucket() -> None:
    """Ten times between 0.15 and 0.2: the median is taken to be in the middle, as PromQL's histogram_quantile does."""
    assert counted(*[0.16] * 10).quantile(0.5) == pytest.approx(0.175)
    assert counted(*[0.16] * 10).quantile(1.0) == pytest.approx(0.2)
    assert counted(*[0.01] * 9, 7.0).quantile(0.95) == pytest.approx(6.25)


def test_a_quantile_above_the_last_bound_is_that_bound_and_of_nothing_nothing() -> None:
    assert counted(10_000.0).quantile(0.5) == BOUNDS["ttft"][-1]
    assert empty("ttft").quantile(0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_wait_is_never_shown_as_longer_than_the_whole_time(share: float) -> None:
    """Each job's wait is a part of its whole time, so it is in the same bucket or one before, of the same bounds."""
    starts = [0.3 * n for n in range(100)]
    waits, wholes = counted(*starts, what="wait"), counted(*(s + 0.05 for s in starts), what="e2e")
    wait, whole = waits.quantile(share), wholes.quantile(share)
    assert wait is not None
    assert whole is not None
    assert wait <= whole
