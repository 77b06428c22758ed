"""Two percentiles, each by its formula."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.bench.support.percentiles import interpolated_percentile, nearest_rank

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
SHARES = st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0])


@pytest.mark.parametrize(
    ("share", "values", "expected"),
    [
        pytest.param(0.5, [4, 1, 3, 2], (2.5, 2), id="an even number of values has two middles"),
        pytest.param(0.99, [*range(1, 101)], (99.01, 99), id="a hundred values, one in a hundred above"),
        pytest.param(0.95, [1, 2, 3], (2.9, 3), id="of few values the largest"),
        pytest.param(0.0, [2, 1], (1, 1), id="no share is the smallest value"),
        pytest.param(0.5, [], (math.nan, math.nan), id="of no values there is none"),
    ],
)
def test_each_definition(share, values, expected):
    found = interpolated_percentile(values, share), nearest_rank(values, share)
    assert found == pytest.approx(expected, nan_ok=True)


@given(VALUES, SHARES)
def test_nearest_rank_is_the_inverted_distribution_of_numpy(values, share):
    assert nearest_rank(values, share) == np.quantile(values, share, method="inverted_cdf")
