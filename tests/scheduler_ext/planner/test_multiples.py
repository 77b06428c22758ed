"""Pods that come in multiples a host, also where their number is none."""

from collections import Counter

import numpy as np
import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World, leaves
from turnout.kube import labels
from turnout.topology.place import complete_multiples


def in_multiples(of, size, **notes):
    return world.volcano("bert", size, gpus=1, notes={labels.PODS_PER_HOST_MULTIPLE: str(of), **notes})


def filled(**free):
    """A world of two leaves of four hosts in which only these have so many GPUs left, the others none."""
    w = World(4, 4)
    return w.put(*(world.pod(f"s-{at}", 8 - free.get(at, 0), at=at) for at in w.names if free.get(at, 0) < 8))


@pytest.mark.parametrize(("free", "size", "of", "counts"), [
    pytest.param({"a0": 4, "a1": 4}, 6, 4, [4, 2], id="six in fours: four and two"),
    pytest.param({"a0": 4, "a1": 3, "b0": 8}, 6, 4, [6], id="one host that holds all comes first"),
    pytest.param({"a0": 3, "a1": 4, "a2": 2}, 6, 4, [4, 2], id="the rest in the tightest hole"),
    pytest.param({"a0": 3, "a1": 3, "a2": 3, "a3": 3}, 8, 3, [3, 3, 2], id="three a host: three hosts, not four"),
    pytest.param({"a0": 2, "a1": 2, "a2": 2, "a3": 3}, 3, 3, [3], id="a whole multiple where it fits"),
    pytest.param({"a0": 1, "a1": 2, "b0": 2}, 2, 4, [2], id="fewer than a multiple share a host"),
])  # fmt: skip
def test_how_a_gang_is_split(free, size, of, counts):
    pods = in_multiples(of, size)
    planned = filled(**free).put(*pods).plan(pods[0])
    assert sorted(Counter(planned.values()).values(), reverse=True) == counts


def test_the_rest_stays_in_the_leaf_that_is_required():
    w, pods = filled(a0=4, a1=1, b0=4, b1=2), in_multiples(4, 6, **REQUIRED)
    planned = w.put(*pods).plan(pods[0])
    assert (len(planned), leaves(planned)) == (6, {"b"})


def test_where_the_rest_fits_nowhere_a_gang_that_needs_it_waits():
    w, pods = filled(a0=4, a1=1, b0=1), in_multiples(4, 6)
    assert not w.put(*pods).plan(pods[0])


def test_what_members_have_begun_is_completed_first():
    w, pods = World(4, 4), in_multiples(4, 8)
    w.put(*pods)
    w.bind(pods[0], "a2")
    planned = w.plan(pods[1])
    assert Counter(planned.values())["a2"] in (3, 7)


@pytest.mark.parametrize(("held_hosts", "pods", "room", "found", "left"), [
    pytest.param([0, 0, 0, 1], 8, [8, 8], [0, 1, 1, 1], [7, 5], id="three lack one, one lacks three"),
    pytest.param([0, 1], 4, [8, 8], [0, 0, 0, 1], [5, 7], id="no more than there are pods, the first host before"),
    pytest.param([0, 1], 8, [2, 8], [0, 0, 1, 1, 1], [0, 5], id="no more than a host has room for"),
    pytest.param([0, 0, 0, 0], 4, [8], [], [8], id="a whole multiple lacks nobody"),
    pytest.param([], 4, [8], [], [8], id="where nobody is nothing has begun"),
])  # fmt: skip
def test_multiples_of_four_are_completed_first(held_hosts, pods, room, found, left):
    room = np.array(room, np.int32)
    assert complete_multiples(held_hosts, 4, pods, room) == found
    assert room.tolist() == left
