"""Replica holders: elsewhere, as evenly as can be, and the same ones after somebody was replaced."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.world import paths
from turnout.launcher.errors import BadMember
from turnout.launcher.rendezvous.restore.replica_placement import assign_heirs, lost_shards, replica_holders


def split(path):
    return tuple(path.split("/")) if path else ()


def at(*places):
    """Members m0, m1, ... at these paths."""
    return [(f"m{number}", split(path)) for number, path in enumerate(places)]


@st.composite
def worlds(draw, minimum=0, maximum=14):
    """Members in few places, so that switches are shared; some of whose place nobody knows."""
    places = draw(st.lists(st.one_of(paths(), paths(), paths(), st.just(())), min_size=minimum, max_size=maximum))
    return [(f"m{number}", path) for number, path in enumerate(places)]


few = st.integers(0, 4)


@pytest.mark.parametrize(
    ("members", "replicas", "holders"),
    [
        pytest.param([], 1, {}, id="nobody"),
        pytest.param(at("s/a"), 1, {"m0": ()}, id="one alone keeps nobody's, not even its own"),
        pytest.param(at("s/a", "s/b"), 0, {"m0": (), "m1": ()}, id="no replicas are asked for"),
        pytest.param(at("s/a", "s/a"), 1, {"m0": ("m1",), "m1": ("m0",)}, id="two under one switch: each other's"),
        pytest.param(at("", ""), 1, {"m0": ("m1",), "m1": ("m0",)}, id="two of whose place nobody knows"),
        pytest.param(
            at("s/a", "s/a", "s/b", "s/b"), 1, {"m0": ("m2",), "m1": ("m3",), "m2": ("m0",), "m3": ("m1",)},
            id="under the other switch",
        ),
        pytest.param(
            at("r/a", "s/c", "r/b", "s/d"), 1, {"m0": ("m1",), "m2": ("m3",), "m1": ("m0",), "m3": ("m2",)},
            id="under the other spine, not only the other leaf",
        ),
        pytest.param(
            at("s/a/h1", "s/a/h1", "s/a/h2", "s/a/h2"), 1,
            {"m0": ("m2",), "m1": ("m3",), "m2": ("m0",), "m3": ("m1",)},
            id="on the other host, where all are under one leaf",
        ),
        pytest.param(
            at("s/a", "s/b", "s/c"), 2, {"m0": ("m1", "m2"), "m1": ("m2", "m0"), "m2": ("m0", "m1")},
            id="two replicas under two switches",
        ),
        pytest.param(
            at("s/a", "s/b", "t/c"), 2, {"m0": ("m2", "m1"), "m1": ("m2", "m0"), "m2": ("m0", "m1")},
            id="the farthest is told first",
        ),
        pytest.param(at("a", "b"), 9, {"m0": ("m1",), "m1": ("m0",)}, id="no more replicas than there are others"),
    ],
)  # fmt: skip
def test_who_keeps_what(members, replicas, holders):
    assert replica_holders(members, replicas) == holders


def test_a_majority_under_one_switch_leaves_nobody_overloaded():
    """Three of four are under a: one of them reaches b, the others at least another member. Memory is the bound."""
    holders = replica_holders(at("s/a", "s/a", "s/a", "s/b"), 1)
    assert Counter(other for others in holders.values() for other in others) == {"m0": 1, "m1": 1, "m2": 1, "m3": 1}
    assert lost_shards(holders, dict(at("s/a", "s/a", "s/a", "s/b"))) == {split("s/a"): 2, split("s"): 4}


def test_an_id_told_twice_is_refused():
    with pytest.raises(BadMember, match="m0"):
        replica_holders([("m0", ()), ("m1", ()), ("m0", ("s",))], 1)


@given(worlds(), few)
def test_never_oneself_nobody_twice_and_each_keeps_as_many_as_it_gives(members, replicas):
    holders = replica_holders(members, replicas)
    assert {*holders} == {id_ for id_, _ in members}
    each = min(replicas, max(len(members) - 1, 0))
    assert all(len(others) == len({*others} - {id_}) == each for id_, others in holders.items())
    load = Counter(other for others in holders.values() for other in others)
    assert {load[id_] for id_ in holders} <= {each}
    assert replica_holders(list(members), replicas) == holders


def domains(members):
    return {path[:depth] for _, path in members for depth in range(1, len(path) + 1)}


def under(domain, path):
    return path[: len(domain)] == domain


@given(worlds(), st.integers(1, 4))
def test_whatever_switch_is_lost_no_even_load_loses_fewer_shards(members, replicas):
    """The g members under one switch can keep `replicas` shards on each of the others; the rest is lost with it."""
    holders, path_of = replica_holders(members, replicas), dict(members)
    each = min(replicas, max(len(members) - 1, 0))
    for domain in domains(members):
        lost_members = {id_ for id_, path in members if under(domain, path)}
        without = [id_ for id_ in holders if {id_, *holders[id_]} <= lost_members]
        assert len(without) == max(0, len(lost_members) - each * (len(members) - len(lost_members)))
        assert lost_shards(holders, path_of)[domain] == len(without)


@given(worlds(minimum=2), st.integers(1, 4))
def test_one_buddy_at_least_is_under_another_switch_whenever_that_can_be(members, replicas):
    """At every tier: where those under a switch are no more than the others can keep for them."""
    holders, path_of = replica_holders(members, replicas), dict(members)
    each = min(replicas, len(members) - 1)
    for id_, path in members:
        for depth in range(1, len(path) + 1):
            gpus_total = sum(under(path[:depth], other) for _, other in members)
            if gpus_total <= each * (len(members) - gpus_total):
                assert not under(path[:depth], path_of[holders[id_][0]])


@given(worlds(minimum=1), st.integers(1, 4))
def test_no_two_copies_are_under_a_switch_that_has_its_share_or_less(members, replicas):
    holders, path_of = replica_holders(members, replicas), dict(members)
    copies = min(replicas, len(members) - 1) + 1
    for domain in domains(members):
        if sum(under(domain, path) for _, path in members) * copies <= len(members) - (len(members) % copies):
            assert all(
                sum(under(domain, path_of[each]) for each in (id_, *others)) <= 1 for id_, others in holders.items()
            )


@given(worlds(), few)
def test_the_farthest_comes_first(members, replicas):
    path_of = dict(members)

    def shared(one, other):
        return sum(1 for depth in range(1, min(len(one), len(other)) + 1) if one[:depth] == other[:depth])

    for id_, others in replica_holders(members, replicas).items():
        shared_switches = [shared(path_of[id_], path_of[other]) for other in others]
        assert shared_switches == sorted(shared_switches)


@given(worlds(minimum=1), few, st.data())
def test_one_replaced_in_its_place_changes_only_its_own_partners(members, replicas, data):
    at_ = data.draw(st.integers(0, len(members) - 1))
    was, path = members[at_]
    before = replica_holders(members, replicas)
    after = replica_holders([*members[:at_], ("new", path), *members[at_ + 1 :]], replicas)
    assert renamed(before, was) == after


def renamed(holders, old_id):
    """Put "new" in the place of one that is gone."""
    to = {old_id: "new"}
    return {to.get(id_, id_): tuple(to.get(other, other) for other in others) for id_, others in holders.items()}


def changed(before, after, old_id):
    """Give those that have other replica holders than before, if the new one counts as the old one."""
    return [id_ for id_, others in renamed(before, old_id).items() if {*after[id_]} != {*others}]


@given(worlds(minimum=2), st.integers(1, 3), st.data())
def test_one_replaced_elsewhere_too_unless_shards_would_be_less_safe(members, replicas, data):
    at_ = data.draw(st.integers(0, len(members) - 1))
    path = data.draw(paths())
    was, _ = members[at_]
    before = replica_holders(members, replicas)
    now = data.draw(st.permutations([*members[:at_], ("new", path), *members[at_ + 1 :]]))
    after, new_holders = replica_holders(now, replicas, before), replica_holders(now, replicas)
    minimum = lost_shards(new_holders, dict(now))
    assert lost_shards(after, dict(now)) == minimum
    if changed(before, after, was):
        assert lost_shards(renamed(before, was), dict(now)) != minimum
        assert after == new_holders


def test_in_a_large_world_a_replacement_elsewhere_moves_nobody_else():
    members = [(f"m{number}", (f"s{number // 64}", f"l{number // 8}")) for number in range(512)]
    before = replica_holders(members, 2)
    now = [*members[:100], ("new", ("s7", "l63")), *members[101:]]
    after = replica_holders(now, 2, before)
    assert changed(before, after, "m100") == []
    assert sum(after[id_] != before[id_] for id_ in after if id_ in before) == 2
    new_holders = replica_holders(now, 2)
    assert sum(new_holders[id_] != before[id_] for id_ in new_holders if id_ in before) > 100


def test_a_world_of_another_size_is_planned_anew():
    members = at("s/a", "s/a", "s/b", "s/b")
    before = replica_holders(members, 1)
    for now in (members[:3], [*members, ("m4", split("s/c"))]):
        assert replica_holders(now, 1, before) == replica_holders(now, 1)


@pytest.mark.parametrize("size", range(2, 6))
def test_no_other_even_choice_is_safer_tried_by_all_of_them(size):
    """Each replica holder of everybody, with one kept by each, in every world of two switches and four hosts."""
    places = [split(path) for path in ("a/1", "a/2", "b/3", "b/4")]
    for chosen in product(places, repeat=size):
        if list(chosen) != sorted(chosen):
            continue
        members = [(f"m{number}", path) for number, path in enumerate(chosen)]
        ours, path_of = lost_shards(replica_holders(members, 1), dict(members)), dict(members)
        for choice in derangements([id_ for id_, _ in members]):
            theirs = lost_shards({id_: (other,) for id_, other in choice.items()}, path_of)
            assert all(ours[domain] <= theirs[domain] for domain in ours)


def derangements(ids):
    """Every way to give each another, each of them once."""

    def more(left, free):
        if not left:
            yield {}
            return
        for other in free:
            if other != left[0]:
                for rest in more(left[1:], free - {other}):
                    yield {left[0]: other, **rest}

    yield from more(ids, {*ids})


@pytest.mark.parametrize(("leavers", "stayers", "found"), [
    pytest.param(at("s/a"), [], {}, id="nobody stays"),
    pytest.param([], at("s/a"), {}, id="nobody leaves"),
    pytest.param(
        [("x", split("s/a")), ("y", split("s/b")), ("z", ())], at("s/a"), {"x": "m0", "y": "m0", "z": "m0"},
        id="one stays of four",
    ),
    pytest.param(
        [("x", split("s/b")), ("y", split("s/a"))], at("s/a", "s/b"), {"x": "m1", "y": "m0"}, id="each to the nearest"
    ),
    pytest.param(
        [("x", split("s/a")), ("y", split("s/a"))], at("s/a", "t/b"), {"x": "m0", "y": "m1"}, id="evenly comes first"
    ),
])  # fmt: skip
def test_who_takes_over(leavers, stayers, found):
    assert assign_heirs(leavers, stayers) == found


@given(worlds(), worlds(minimum=1))
def test_each_leaver_has_one_heir_and_heirs_differ_by_one_at_most(leavers, stayers):
    found = assign_heirs([(f"x{id_}", path) for id_, path in leavers], stayers)
    assert sorted(found) == sorted(f"x{id_}" for id_, _ in leavers)
    load = Counter(found.values())
    counts = [load[id_] for id_, _ in stayers]
    assert max(counts) - min(counts) <= 1
