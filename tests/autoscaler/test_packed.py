"""An object kept as bytes reads as the object did, and is nobody's to change."""

import pytest

from turnout.autoscaler.observe.packed import Packed

JOB = {"metadata": {"name": "a", "annotations": {"k": "v"}}, "spec": {"parallelism": 2, "ratio": 0.5, "none": None}}


def test_it_reads_as_the_object_did():
    packed = Packed(JOB)
    assert (dict(packed), list(packed), len(packed)) == (JOB, list(JOB), 2)
    assert {**packed, "kind": "Job"} == {**JOB, "kind": "Job"}


def test_what_a_reader_changes_stays_with_the_reader():
    packed = Packed(JOB)
    packed["metadata"]["annotations"]["k"] = "other"
    assert packed["metadata"]["annotations"] == {"k": "v"}


def test_a_field_that_is_not_there_is_a_key_error():
    with pytest.raises(KeyError, match="status"):
        Packed(JOB)["status"]
