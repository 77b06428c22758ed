"""Group ranks: neighbours in rank are neighbours in the fabric, and a replacement moves nobody else."""

import subprocess
import sys
from functools import partial
from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.kit.lines_run import lines_run
from tests.topology.world import guide_table, paths
from turnout.launcher.model import Member
from turnout.launcher.rendezvous.rank_assignment import (
    LIMIT,
    CrossingLimit,
    addresses_by_rank,
    crossings,
    optimum,
    rank_members,
)
from turnout.topology.fabric import build, ring_cost
from turnout.topology.map_formats import read_map
from turnout.topology.model import MapEntry
from turnout.topology.rank_order import in_rank_order

NEVER_ANEW = CrossingLimit(factor=1e9)


def worker(name, path="", index=None, host=""):
    return Member(f"{name}@{host}{path}", name, host or f"host-of-{name}", path=split(path), index=index)


def split(path):
    return tuple(path.split("/")) if path else ()


def world(*places):
    """Members w0, w1, ... at these paths, seated."""
    return rank_members([worker(f"w{at}", path, at) for at, path in enumerate(places)]).members


def names(ranking):
    return [member.name for member in ranking.members]


@st.composite
def members(draw, minimum=0, maximum=12, indexes=(True, False)):
    """Workers of any place, some known and some not, some on one host, with and without an index."""
    size = draw(st.integers(minimum, maximum))
    places = st.one_of(paths(), paths(), paths(), st.just(()))
    return [
        Member(
            f"w{at}", f"w-{at}", draw(st.sampled_from(["", "h1", "h2"])), path=draw(places),
            index=at if draw(st.sampled_from(indexes)) else None,
        )
        for at in range(size)
    ]  # fmt: skip


@st.composite
def replacements(draw, maximum=16, indexes=(True, False)):
    """A world, and the same number of members afterwards: some stay, some are new, some came back elsewhere."""
    before = rank_members(draw(members(1, maximum, indexes))).members
    after = []
    for member in before:
        fate = draw(st.sampled_from(["stays", "stays", "new", "elsewhere"]))
        path = draw(st.one_of(paths(), st.just(())))
        if fate == "stays":
            after.append(member)
        else:
            name = member.name if fate == "elsewhere" else f"new-{member.name}"
            after.append(Member(f"{member.id}-again", name, "h9", path=path, index=member.index))
    return before, draw(st.permutations(after))


@pytest.mark.parametrize(
    ("members", "ranked"),
    [
        pytest.param([], [], id="nobody"),
        pytest.param(
            [worker("w-10"), worker("w-2"), worker("w-1")], ["w-1", "w-2", "w-10"], id="names with numbers, no map"
        ),
        pytest.param([worker("b", index=0), worker("a", index=1)], ["b", "a"], id="the index before the name"),
        pytest.param([worker("a"), worker("b", index=7)], ["b", "a"], id="who has an index before who has none"),
        pytest.param(
            [worker("w0", "s/a"), worker("w1", "s/b"), worker("w2", "s/a"), worker("w3", "s/b")],
            ["w0", "w2", "w1", "w3"],
            id="leaf by leaf",
        ),
        pytest.param(
            [worker("w0", "s/a"), worker("w1", "s/b"), worker("w2", "s/b")],
            ["w1", "w2", "w0"],
            id="the largest leaf first, outposts last",
        ),
        pytest.param(
            [worker("w0", "r/a"), worker("w1", "s/b"), worker("w2", "r/c"), worker("w3", "s/d"), worker("w4", "s/b")],
            ["w1", "w4", "w3", "w0", "w2"],
            id="spine by spine, the largest first",
        ),
        pytest.param(
            [worker("w0", "s/l10"), worker("w1", "s/l9")], ["w1", "w0"], id="switches in the order of their numbers"
        ),
        pytest.param(
            [worker("w0"), worker("w1", "s/a"), worker("w2"), worker("w3", "s/a")],
            ["w1", "w3", "w0", "w2"],
            id="who stands nobody knows where comes last",
        ),
        pytest.param(
            [worker("w0", "s/a", host="x"), worker("w1", "s/a", host="y"), worker("w2", "s/a", host="x")],
            ["w0", "w2", "w1"],
            id="members of one host are neighbours",
        ),
    ],
)
def test_a_new_world(members, ranked):
    for order_told in (members, members[::-1]):
        assert names(rank_members(order_told)) == ranked


@pytest.mark.parametrize(
    ("before", "lost", "come", "ranked"),
    [
        pytest.param(
            ["s/a", "s/a", "s/b", "s/b"], "w1", [worker("w1", "s/b")], ["w0", "w1", "w2", "w3"],
            id="one seat is free, wherever its new owner stands",
        ),
        pytest.param(
            ["s/a", "s/a", "s/a", "s/b", "s/b", "s/b"], "w1 w4", [worker("x", "s/b"), worker("y", "s/a")],
            ["w0", "y", "w2", "w3", "x", "w5"], id="of two new ones each goes where its neighbours are",
        ),
        pytest.param(
            ["s/a", "s/a", "s/a", "s/a"], "w1 w2", [worker("w2", "s/a", host="new"), worker("x", "s/a")],
            ["w0", "x", "w2", "w3"], id="among equals who comes back has its own seat",
        ),
        pytest.param(
            ["s/a"] * 4, "w1 w2", [worker("x2", "s/a", index=2), worker("x1", "s/a", index=1)],
            ["w0", "x1", "x2", "w3"], id="a new name with an old index has the seat of that index",
        ),
        pytest.param(
            ["", "", "", ""], "w1 w2", [worker("w2"), worker("x")], ["w0", "x", "w2", "w3"], id="nobody knows a place"
        ),
        pytest.param(
            ["s/a", "s/a", "s/a", "s/b", "s/b", "s/b"], "w1 w4", [worker("x"), worker("y", "s/a")],
            ["w0", "y", "w2", "w3", "x", "w5"], id="a place that nobody knows takes no seat away",
        ),
    ],
)  # fmt: skip
def test_a_replacement_moves_nobody_else(before, lost, come, ranked):
    was = world(*before)
    after = [member for member in was if member.name not in lost.split()] + come
    for members in (after, after[::-1]):
        ranking = rank_members(members, was)
        assert names(ranking) == ranked
        assert (ranking.moved, ranking.is_new) == (0, False)


@pytest.mark.parametrize(
    ("astray", "crossings_left", "new_ranks"),
    [
        pytest.param({3: "s/c"}, 5, False, id="one among strangers crosses twice more"),
        pytest.param({3: "s/c", 11: "s/a"}, 5, False, id="of two one finds a seat at home"),
        pytest.param({3: "s/b", 11: "s/c", 19: "s/a"}, 3, False, id="three in a circle all do"),
        pytest.param({3: "s/c", 5: "s/c"}, 3, True, id="two among strangers are too much: ranked anew"),
    ],
)
def test_the_excess_is_told_and_past_the_limit_all_are_ranked_anew(astray, crossings_left, new_ranks):
    """Three leaves of eight: their ring crosses three times, so that up to 1.5 x 3 + 2 = 6.5 may stay."""
    was = world(*(f"s/{leaf}" for leaf in "abc" for _ in range(8)))
    after = [worker(f"x{at}", astray[at]) if at in astray else member for at, member in enumerate(was)]
    ranking = rank_members(after, was)
    assert (ranking.crossings, ranking.excess, ranking.is_new) == (crossings_left, crossings_left - 3, new_ranks)


def test_a_world_that_strays_too_far_is_optimal_again_and_says_who_moved():
    was = world(*(f"s/{leaf}" for leaf in "abc" for _ in range(8)))
    after = list(was)
    for rank in (2, 4, 6):
        after[rank] = worker(f"x{rank}", "s/c")
    ranks_kept = rank_members(after, was, NEVER_ANEW)
    assert (ranks_kept.crossings, ranks_kept.optimum, ranks_kept.moved) == (9, 3, 0)
    ranking = rank_members(after, was)
    assert (ranking.crossings, ranking.excess, ranking.is_new) == (3, 0, True)
    assert ranking.moved > 0
    assert names(ranking)[:11] == ["w16", "w17", "w18", "w19", "w20", "w21", "w22", "w23", "x2", "x4", "x6"]


def test_a_resized_world_is_ranked_anew():
    was = world("s/a", "s/a", "s/b", "s/b")
    grown = rank_members([*was, worker("w4", "s/b", 4)], was)
    assert names(grown) == ["w2", "w3", "w4", "w0", "w1"]
    assert (grown.is_new, grown.moved, grown.crossings) == (True, 4, 2)


def test_a_world_that_only_restarts_keeps_every_rank():
    was = world("s/a", "s/a", "s/b", "s/b")
    restarted = [Member(f"again-{member.id}", member.name, member.host, path=member.path) for member in was[::-1]]
    ranking = rank_members(restarted, was)
    assert names(ranking) == [member.name for member in was]
    assert not ranking.is_new


def test_places_that_become_known_late_make_the_ring_optimal():
    was = world("", "", "", "")
    ranking = rank_members([worker(f"w{at}", path, at) for at, path in enumerate(["s/a", "s/b", "s/a", "s/b"])], was)
    assert names(ranking) == ["w0", "w2", "w1", "w3"]
    assert ranking.is_new


def test_the_guides_table_gives_ranks_of_one_access_switch_in_one_run():
    entries = read_map({"topology_config": guide_table()}).entries
    ranking = rank_members([Member(entry.host, entry.host, path=entry.path) for entry in entries])
    leaves = [member.path for member in ranking.members]
    assert ranking.crossings == ranking.optimum == 4
    assert leaves == [leaf for leaf in dict.fromkeys(leaves) for _ in range(leaves.count(leaf))]


@pytest.mark.contract("DL-107")
def test_the_addresses_are_told_by_rank():
    addresses = [
        Member("1", "w1", address="10.0.0.9", path=("s", "b")),
        Member("2", "w2", address="10.0.0.1", path=("s", "a")),
    ]
    assert addresses_by_rank(rank_members(addresses).members) == ("10.0.0.1", "10.0.0.9")


@given(members(), st.data())
def test_a_new_world_is_a_least_crossing_permutation_whatever_the_order(drawn_members, data):
    ranking = rank_members(drawn_members)
    assert sorted(member.id for member in ranking.members) == sorted(member.id for member in drawn_members)
    assert ranking.crossings == crossings(ranking.members) == ranking.optimum == optimum(drawn_members)
    assert rank_members(data.draw(st.permutations(drawn_members))) == ranking


@given(members(1, 6))
@example([worker("w0", "s/a"), worker("w1", "s/b"), worker("w2"), worker("w3", "s/a")])
def test_no_order_at_all_crosses_less_than_the_optimum(drawn_members):
    assert min(crossings(each) for each in permutations(drawn_members)) == optimum(drawn_members)


@given(st.lists(paths(), min_size=1, max_size=12))
def test_ranks_are_those_that_the_planner_gives_and_cost_what_it_counts(drawn):
    built = build(MapEntry(f"h{at}", path, at + 1) for at, path in enumerate(drawn))
    ranking = rank_members([Member(f"h{at}", f"h{at}", f"h{at}", path=path) for at, path in enumerate(drawn)])
    host_ids = [built.id_of_host[member.host] for member in ranking.members]
    assert host_ids == [host for host, _ in in_rank_order(built, [(host, 1) for host in range(len(drawn))])]
    assert ranking.crossings == ring_cost(built, host_ids).crossings[0]
    assert ring_cost(built, host_ids).crossings == tuple(n if n > 1 else 0 for n in ring_cost(built, host_ids).switches)


@given(replacements(), st.randoms(use_true_random=False))
def test_below_the_limit_stayers_keep_ranks_and_past_it_order_is_optimal(both, dice):
    before, after = both
    ranking = rank_members(after, before)
    assert sorted(member.id for member in ranking.members) == sorted(member.id for member in after)
    assert rank_members(dice.sample(after, len(after)), before) == ranking
    rank_of = {member.id: rank for rank, member in enumerate(ranking.members)}
    stayers = [member.id for member in before if member.id in rank_of]
    if ranking.is_new:
        assert ranking.excess == 0
        assert not stayers or not LIMIT.allows(rank_members(after, before, NEVER_ANEW).crossings, ranking.optimum)
    else:
        assert all(before[rank_of[id_]].id == id_ for id_ in stayers)
        assert LIMIT.allows(ranking.crossings, ranking.optimum)


@settings(max_examples=scaled(50))
@given(replacements(indexes=(True,)))
def test_new_members_never_cost_more_than_in_the_places_they_take_over(both):
    before, after = both
    ranking = rank_members(after, before, NEVER_ANEW)
    by_id = {member.id.removesuffix("-again"): member for member in after}
    in_old_seats = [by_id[member.id] for member in before]
    assert _all_tiers(ranking.members) <= _all_tiers(in_old_seats)


def _all_tiers(ranked):
    """Give the ring cost of the members whose place is known, on a fabric of hosts on their paths."""
    known = [member for member in ranked if member.path]
    built = build(MapEntry(member.id, member.path, at + 1) for at, member in enumerate(known))
    return ring_cost(built, [built.id_of_host[member.id] for member in known]).total


@pytest.mark.parametrize(("size", "most_a_member"), [(1024, 120), (10_000, 70)])
def test_the_work_for_a_member_does_not_grow_with_the_world(size, most_a_member):
    """A world that is new, and one with 20 replaced at other places: 36 and 96 lines a member of 1,024 were seen."""
    members = [worker(f"w-{at}", f"core/s{at % 40 // 8}/l{at % 40}", at) for at in range(size)]
    before = rank_members(members).members
    after = [*before[:-20], *(worker(f"x-{at}", f"core/s{at % 5}/l{at % 40}", at) for at in range(20))]
    for told_now, was in ((members, ()), (after, before)):
        assert lines_run(partial(rank_members, told_now, was)) <= most_a_member * size


def test_no_library_is_loaded_for_it():
    heavy = "{'numpy', 'networkx', 'yaml', 'torch', 'kubernetes', 'aiohttp'} & set(sys.modules)"
    modules = "turnout.launcher.rendezvous.rank_assignment, turnout.launcher.agent.switch_path"
    code = f"import sys, {modules}; print({heavy})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout == "set()\n"


def test_a_job_that_keeps_its_order_is_ranked_by_index():
    members = [worker(f"w{at}", "ab"[at % 2], at) for at in range(12)]
    by_index, by_fabric = rank_members(members, by_index=True), rank_members(members)
    assert names(by_index) == [f"w{at}" for at in range(12)]
    assert (by_index.crossings, by_fabric.crossings) == (12, 2)


def test_who_comes_back_elsewhere_keeps_the_rank_of_its_index():
    before = world("a", "a", "b", "b")
    members = [*before[:1], worker("w1", "c", 1), *before[2:]]
    assert names(rank_members(members, before, by_index=True)) == ["w0", "w1", "w2", "w3"]
