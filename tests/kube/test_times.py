"""Times of Kubernetes: a text of ISO 8601 is a time, and nothing else is."""

import pytest

from turnout.kube.times import rfc3339, rfc3339_micro, unix_s


@pytest.mark.parametrize("write", [rfc3339, rfc3339_micro])
def test_a_written_time_is_read_again(write):
    assert unix_s(write(1_800_000_000.0)) == 1_800_000_000.0


@pytest.mark.parametrize("value", [None, 20260131, 20260131.0, True, "", "soon", [], {}, "9999-12-31T23:59:59-23:59"])
def test_a_value_that_is_no_time_counts_as_none(value):
    assert unix_s(value) is None
