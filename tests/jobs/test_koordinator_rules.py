"""The terms of koordinator's annotations that are not kept: each of them is reported."""

import json

import pytest

from turnout.jobs.wishes import koordinator

MUST = {"layer": "LeafLayer", "strategy": "MustGather"}


def read(*rules, **more):
    """The terms of a gather strategy, and the sentences about unreadable values."""
    faults = []
    wish = koordinator.read({koordinator.SPEC: json.dumps({"gatherStrategy": rules, **more})}, faults)
    return wish, faults


@pytest.mark.parametrize("value", ["4", 0, -1, 1_000_000, 2.0, True], ids=str)
def test_a_wrong_multiple_is_reported_and_the_rest_of_the_rule_counts(value):
    wish, (fault,) = read({**MUST, "podCountMultiple": value})
    assert (wish.required, wish.layers, wish.multiple) == ("LeafLayer", (), 1)
    assert "podCountMultiple is" in fault


@pytest.mark.parametrize("value", [1, 4, 999_999])
def test_a_valid_multiple_is_kept_without_a_report(value):
    wish, faults = read({"layer": "NodeTopologyLayer", "podCountMultiple": value})
    assert (wish.multiple, faults) == (value, [])


def test_a_rule_that_is_no_object_is_reported_and_the_others_count():
    wish, (fault,) = read(5, MUST)
    assert wish.required == "LeafLayer"
    assert "must be an object" in fault


def test_rules_that_are_too_many_are_reported():
    wish, faults = read(*[{"layer": "L", "strategy": "PreferGather"}] * 16, MUST)
    assert (wish.required, faults) == (None, [])
    assert wish.ignored == (f"{koordinator.SPEC} has 17 rules, of which 16 are kept",)


def test_annotations_that_are_too_long_say_so():
    wish, (fault,) = read(MUST, x="y" * 8192)
    assert wish.required is None
    assert "characters, and at most 8192 are read" in fault
    faults = []
    assert koordinator.read({koordinator.GROUPS: json.dumps(["ns/gang"] * 500)}, faults) is None
    assert "characters, and at most 4096 are read" in faults[0]
