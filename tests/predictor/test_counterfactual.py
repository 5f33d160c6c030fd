"""What the same jobs would have used otherwise, by hand."""

from dataclasses import astuple

import pytest

from broker.accounts import Book, Used
from broker.histograms import BOUNDS, READ, Histogram, bucket_of, empty
from broker.job import ServiceClass
from predictor.counterfactual import Pool, Rates, instead, rates

SMALL = Used(
    prompt_tokens=1000, cached_tokens=400, output_tokens=100, gpu_us=3_000_000, nano_usd=1_000_000_000
)


def book(used: Used = SMALL, *reads_s: float) -> Book:
    """`reads_s`: seconds per 1,000 tokens of prompts that were read."""
    counts = [0] * len(empty(READ).counts)
    for read_s in reads_s:
        counts[bucket_of(READ, read_s)] += 1
    reading = Histogram(BOUNDS[READ], tuple(counts), sum(reads_s))
    return Book({("acme", ServiceClass.P0): used}, reading=reading)


def test_rates_share_a_pools_time_among_prompts_and_answers() -> None:
    """600 tokens were read at 1 ms each; the other 2.4 s wrote 100."""
    found = rates(book(), assumed_s=0.001, gpus=1)
    assert found is not None
    assert astuple(found) == pytest.approx((0.001, 0.024))
    assert found.gpu_s(SMALL) == pytest.approx(SMALL.gpu_s)


def test_the_fastest_of_many_long_prompts_tell_how_fast_a_pool_reads_for_each_of_its_gpus() -> None:
    """Bounds are a factor of 1.5 apart."""
    few, many = book(SMALL, *[0.2] * 4), book(SMALL, *[0.2] * 20, *[5.0] * 80)
    for known, read_s in ((few, 0.001), (many, 0.0002)):
        found = rates(known, assumed_s=0.001, gpus=2)
        assert found is not None
        assert 1 / 1.5 < found.read_s / (2 * read_s) < 1.5


def test_reading_takes_no_more_than_all_of_the_time() -> None:
    found = rates(book(), assumed_s=1.0, gpus=1)
    assert found is not None
    assert astuple(found) == pytest.approx((0.005, 0.0))


def test_a_pool_that_has_written_nothing_has_no_rates() -> None:
    assert rates(book(Used(prompt_tokens=5, gpu_us=10)), assumed_s=0.001, gpus=1) is None


def test_jobs_cost_more_without_prefix_reuse_and_as_much_as_the_large_pool_takes_for_them() -> None:
    pools = {
        "small": Pool(Rates(0.001, 0.024), gpu_hour_usd=3600.0, larger="large"),
        "large": Pool(Rates(0.01, 0.1), gpu_hour_usd=7200.0),
    }
    large = Used(prompt_tokens=10, output_tokens=10, gpu_us=1_100_000, nano_usd=2_000_000_000)
    found = instead({"small": SMALL, "large": large}, pools)
    assert found.all_large is not None
    assert astuple(found.actual) == pytest.approx((4.1, 3.0))
    assert astuple(found.no_prefix_reuse) == pytest.approx((4.1 + 0.4, 3.0 + 0.4))
    # the small pool's 600 + 100 tokens as the large pool takes them, and the large pool's own as they were
    assert astuple(found.all_large) == pytest.approx((6.0 + 10.0 + 1.1, 2 * 16.0 + 2.0))


def test_where_no_route_leads_to_a_known_larger_pool_there_is_no_such_figure() -> None:
    assert instead({"small": SMALL}, {"small": Pool(None, larger="large")}).all_large is None
    assert instead({"small": SMALL}, {}) == instead({"small": SMALL}, {"small": Pool(None)})
