"""The sizes and levels in Kueue's list of slices: what they may be, and what becomes of a list with another value."""

import json

import pytest

from turnout.jobs.wishes import kueue
from turnout.jobs.wishes.model import Layer

RACK = "cloud.provider.com/topology-rack"


def read(*slices):
    """The layers of the list, and the sentences about unreadable values."""
    faults = []
    wish = kueue.read({kueue.LAYERS: json.dumps(slices)}, faults)
    return wish.layers, faults


def test_a_list_beside_a_single_slice_is_not_read_and_reported():
    notes = {kueue.SLICE_LEVEL: "rack", kueue.SLICE_SIZE: "4", kueue.LAYERS: json.dumps([{"topology": "a", "size": 8}])}
    wish = kueue.read(notes, [])
    assert wish.layers == (Layer("rack", 4),)
    assert wish.ignored == (f"{kueue.LAYERS} is not read, because {kueue.SLICE_LEVEL} is set, too",)


def test_a_list_that_is_too_long_to_be_read_is_reported():
    layers, faults = read(*[{"topology": RACK, "size": 8}] * 80)
    assert layers == ()
    assert len(faults) == 1
    assert "characters, and at most 4096 are read" in faults[0]


def test_a_list_of_slices_is_read():
    assert read({"topology": RACK, "size": 8}, {"topology": "kubernetes.io/hostname", "size": 2}) == (
        (Layer(RACK, 8), Layer("kubernetes.io/hostname", 2)),
        [],
    )


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(0, id="a size of 0"),
        pytest.param(-2, id="a size below 0"),
        pytest.param(1_000_000, id="a size above 999999"),
        pytest.param(3_000_000_000, id="a size above 32 bits"),
        pytest.param(10**30, id="a size above 64 bits"),
        pytest.param(2.9, id="a size that is no whole number"),
        pytest.param(True, id="a size that is true"),
        pytest.param("4", id="a size that is a text"),
        pytest.param(None, id="no size"),
    ],
)
def test_a_list_with_a_wrong_size_is_not_used_and_its_owner_learns_why(value):
    layers, (fault,) = read({"topology": RACK, "size": 8}, {"topology": RACK, "size": value})
    assert layers == ()
    assert "size from 1 to 999999" in fault


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="null"),
        pytest.param(3, id="a number"),
        pytest.param("", id="an empty text"),
        pytest.param("no label key", id="a text with spaces"),
        pytest.param("a" * 300, id="a text that is too long for the key of a label"),
    ],
)
def test_a_list_with_a_wrong_level_is_not_used_and_its_owner_learns_why(value):
    layers, (fault,) = read({"topology": value, "size": 8})
    assert layers == ()
    assert "topology" in fault
