"""A gang that prefers equal shares: the fewest leaves first, then the smallest largest share that they allow.

The law tries every placement of a few pods on a few hosts. It knows nothing of the planner.
"""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turnout.topology.fabric import build
from turnout.topology.mesh import hosts_of
from turnout.topology.model import MapEntry, PlacementRequest, Refusal
from turnout.topology.place import place_balanced, place_in_multiples


def fabric_of(spines):
    """A fabric of spines, each a list of leaves, each a number of hosts."""
    places = [(spine, leaf) for spine, leaves in enumerate(spines) for leaf, size in enumerate(leaves)
              for _ in range(size)]  # fmt: skip
    return build(MapEntry(f"n{at}", (f"s{s}", f"l{s}-{leaf}"), at + 1) for at, (s, leaf) in enumerate(places))


def domain_of(fabric, tier, host):
    return int(fabric.switch_of[min(tier, fabric.tiers)][host])


def used(fabric, hosts):
    """The switches of each tier from the leaves up that some hosts are under."""
    return [len({domain_of(fabric, tier, host) for host in hosts}) for tier in range(1, fabric.tiers)]


def largest_share(fabric, counts):
    """The most pods under one leaf. counts: pods by host."""
    return max(np.bincount(fabric.switch_of[1], weights=counts).astype(int).tolist())


def every_way(room, pods, multiple):
    """Every number of pods a host, in multiples; one host may have the rest of them."""
    rest = pods % multiple
    choices = [[n for n in range(min(free, pods) + 1) if n % multiple in (0, rest)] for free in room]
    for counts in itertools.product(*choices):
        if sum(counts) == pods and sum(n % multiple != 0 for n in counts) <= (rest > 0):
            yield counts


def least_share(fabric, room, request, tier, most_used):
    """The smallest largest share of all ways in a domain of a tier on no more switches."""
    before = np.zeros(len(room), int)
    for host, pods in request.anchors:
        before[host] += pods
    shares = []
    for counts in every_way(room, request.pods, request.multiple):
        hosts = [host for host, pods in enumerate(counts + before) if pods]
        own = used(fabric, hosts)
        if len({domain_of(fabric, tier, host) for host in hosts}) == 1 and own[0] <= most_used[0]:
            shares += [largest_share(fabric, counts + before)] if sum(own) <= sum(most_used) else []
    return min(shares)


@st.composite
def scenes(draw):
    """A fabric of at most five hosts, its room, and a request of at most ten pods."""
    spines = draw(st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=4), min_size=1, max_size=3).filter(
        lambda spines: sum(map(sum, spines)) <= 5))  # fmt: skip
    fabric = fabric_of(spines)
    count = len(fabric.hosts)
    room = np.array(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)), np.int32)
    multiple = draw(st.sampled_from([1, 1, 2, 3]))
    anchors = draw(st.dictionaries(st.integers(0, count - 1), st.integers(1, 2).map(lambda n: n * multiple),
                                   max_size=2))  # fmt: skip
    pods = draw(st.integers(1, 10))
    return fabric, room, PlacementRequest(pods, pods, pods, multiple, None, tuple(sorted(anchors.items())))


@given(scenes())
def test_equal_shares_cost_no_switch_and_are_as_small_as_they_can_be(scene):
    fabric, room, request = scene
    plain, even = place_in_multiples(fabric, room, request), place_balanced(fabric, room, request)
    assert isinstance(plain, Refusal) is isinstance(even, Refusal)
    if isinstance(plain, Refusal):
        return
    assert (even.pods, even.tier) == (plain.pods, plain.tier)
    if plain.pods < request.pods or plain.tier < 2:
        return
    anchored = [host for host, _ in request.anchors]
    most_used, own = (used(fabric, {*anchored, *hosts_of(each)}) for each in (plain, even))
    assert own[0] <= most_used[0]
    assert sum(own) <= sum(most_used)
    counts = np.bincount(
        [*hosts_of(even), *(host for host, n in request.anchors for _ in range(n))], minlength=len(room)
    )
    if request.pods % request.multiple == 0:  # where the rest of the multiples goes is not tried in every way
        assert largest_share(fabric, counts) == least_share(fabric, room, request, plain.tier, most_used)
    pods_by_leaf = np.bincount(hosts_of(even), minlength=len(room))
    assert (pods_by_leaf <= room).all()
    assert sum(n % request.multiple != 0 for n in pods_by_leaf) <= (request.pods % request.multiple > 0)
