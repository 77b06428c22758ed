"""Where the leaves are equal, a plan uses no more hosts than needed: compared with every plan of small fabrics."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.world import fabric, room
from turnout.topology.model import PlacementRequest
from turnout.topology.place import plan

LEAVES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=4)


def fewest(hosts, pods):
    """The least number of hosts that hold so many pods, by trying every set of them."""
    sets = (
        chosen for count in range(len(hosts) + 1) for chosen in itertools.combinations(hosts, count)
        if sum(chosen) >= pods
    )  # fmt: skip
    return len(next(sets))


def shares_of(leaves, pods):
    """Every way to share the pods among the leaves."""
    shares = itertools.product(*(range(min(sum(hosts), pods) + 1) for hosts in leaves))
    return [share for share in shares if sum(share) == pods]


def holes_after(leaves, share):
    return sorted(sum(hosts) - pods for hosts, pods in zip(leaves, share, strict=True))


@pytest.mark.parametrize(("leaves", "pods", "hosts"), [
    pytest.param([[1, 1], [2]], 3, 2, id="the leaf of two hosts is left partly free"),
    pytest.param([[2], [1, 1]], 3, 2, id="whichever leaf is first"),
    pytest.param([[1, 1, 1], [2, 1]], 3, 2, id="of two leaves that hold all, the one with fewer hosts"),
    pytest.param([[3], [2, 1], [3]], 6, 2, id="of three equal leaves the two with one host each"),
    pytest.param([[3], [1, 1, 1], [2, 1]], 5, 2, id="an equal leaf is taken instead, for its part"),
])  # fmt: skip
def test_equal_leaves_are_compared_by_their_hosts(leaves, pods, hosts):
    found = plan(
        fabric([len(each) for each in leaves]), room(*itertools.chain(*leaves)), PlacementRequest(pods, pods, pods)
    )
    assert len(found.slots) == hosts


@given(LEAVES, st.data())
def test_no_plan_that_leaves_the_same_holes_of_leaves_uses_fewer_hosts(leaves, data):
    total = sum(map(sum, leaves))
    if not total:
        return
    pods = data.draw(st.integers(1, total))
    built = fabric([len(each) for each in leaves])
    found = plan(built, room(*itertools.chain(*leaves)), PlacementRequest(pods, pods, pods))
    pods_by_leaf = Counter()
    for host, count in found.slots:
        pods_by_leaf[int(built.switch_of[1][host])] += count
    own = tuple(pods_by_leaf[leaf] for leaf in range(len(leaves)))
    equal = [
        share for share in shares_of(leaves, pods)
        if sum(map(bool, share)) == sum(map(bool, own)) and holes_after(leaves, share) == holes_after(leaves, own)
    ]  # fmt: skip
    assert own in equal
    min_pods = min(sum(fewest(hosts, pods) for hosts, pods in zip(leaves, share, strict=True)) for share in equal)
    assert len(found.slots) == min_pods
