"""Four percentiles, each by its formula, and what they have in common."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.bench.support.percentiles import interpolated, interpolated_up, nearest_rank, rank_above

FOUR = [interpolated, interpolated_up, nearest_rank, rank_above]
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
SHARES = st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0])


@pytest.mark.parametrize(
    ("share", "values", "expected"),
    [
        pytest.param(0.5, [4, 1, 3, 2], (2.5, 3, 2, 3), id="an even number of values has two middles"),
        pytest.param(0.5, [3, 1, 2], (2, 2, 2, 2), id="an odd number has one, and all four agree"),
        pytest.param(0.99, [*range(1, 101)], (99.01, 100, 99, 100), id="a hundred values, one in a hundred above"),
        pytest.param(0.95, [1, 2, 3], (2.9, 3, 3, 3), id="few values: all but the first take the largest"),
        pytest.param(1.0, [2, 1], (2, 2, 2, 2), id="the whole share is the largest value"),
        pytest.param(0.0, [2, 1], (1, 1, 1, 1), id="no share is the smallest value"),
    ],
)
def test_each_definition(share, values, expected):
    assert tuple(each(values, share) for each in FOUR) == pytest.approx(expected)


@pytest.mark.parametrize("percentile", FOUR)
def test_of_no_values_there_is_none(percentile):
    assert math.isnan(percentile([], 0.5))


@given(VALUES, SHARES)
def test_nearest_rank_is_the_inverted_distribution_of_numpy(values, share):
    assert nearest_rank(values, share) == np.quantile(values, share, method="inverted_cdf")


@given(VALUES, SHARES)
def test_all_but_the_interpolated_one_are_measured_values_in_this_order(values, share):
    assert {nearest_rank(values, share), interpolated_up(values, share), rank_above(values, share)} <= {*values}
    assert nearest_rank(values, share) <= rank_above(values, share)
    assert interpolated(values, share) <= interpolated_up(values, share) + 1e-9 * abs(interpolated_up(values, share))
