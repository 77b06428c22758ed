"""From when on a time is slow: beside those of the others, by each rule, and beside a floor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.health.judge_nodes import Sample
from turnout.launcher.health.model import SlowRule, StragglerLimits

MEAN, MEDIAN, SPREAD = StragglerLimits(), StragglerLimits(rule=SlowRule.MEDIAN), StragglerLimits(rule=SlowRule.SPREAD)


def slow(times, limits, always_slow_s=None):
    sample = Sample(times, limits)
    return [at for at, time_s in enumerate(times) if sample.is_slow(time_s, [time_s], always_slow_s)]


@pytest.mark.contract("DL-31")
@pytest.mark.parametrize(
    ("times", "limits", "found"),
    [
        pytest.param([1, 1, 1, 2.1], MEAN, [3], id="more than twice the mean of the others, DL-31"),
        pytest.param([1, 1, 1, 1.9], MEAN, [], id="less, DL-31"),
        pytest.param([1, 1, 1, 2.0], MEAN, [], id="twice is not more than twice"),
        pytest.param([1, 3], MEAN, [1], id="of two the other is the mean"),
        pytest.param([5], MEAN, [], id="nobody else, nobody is slow"),
        pytest.param([1, 3, 1, 3], MEAN, [], id="many slow ones raise the mean"),
        pytest.param([1, 3, 1, 3], MEDIAN, [1, 3], id="and not the median of the others: DLRover finds none"),
        pytest.param([1, 1.02, 0.98, 1.01, 1.5], SPREAD, [4], id="far outside of how much they differ"),
        pytest.param([1, 1.4, 0.7, 1.2, 1.5], SPREAD, [], id="within it, where they differ much"),
        pytest.param([1, 1, 1, 1.2], SPREAD, [], id="equal ones: a quarter more is needed"),
        pytest.param([1, 1, 1, 1.3], SPREAD, [3], id="equal ones, and more than a quarter"),
    ],
)
def test_rules(times, limits, found):
    assert slow(times, limits) == found


def test_a_floor_needs_nobody_else():
    assert slow([5, 5, 5], MEAN, always_slow_s=4) == [0, 1, 2]
    assert slow([5, 5, 5], MEAN, always_slow_s=5) == []


times = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


@given(times, st.sampled_from([MEAN, MEDIAN, SPREAD]), st.data())
def test_all_that_is_slow_is_suspected(times, limits, data):
    sample, own = Sample(times, limits), data.draw(st.lists(st.sampled_from(range(len(times))), unique=True))
    left_out = [times[at] for at in own]
    for time_s in times:
        assert sample.is_suspicious(time_s, left_out, None) or not sample.is_slow(time_s, left_out, None)
