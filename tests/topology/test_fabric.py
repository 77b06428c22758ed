"""The tables of a fabric, distances, costs, scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.world import fabric, fabrics, paths
from turnout.topology.fabric import (
    EMPTY,
    build,
    common_tier,
    distance,
    distances_from,
    moved_share,
    ring_cost,
    scores,
    with_unmapped_hosts,
)
from turnout.topology.model import DistanceRule, MapEntry


def entries(*pairs):
    return [MapEntry(host, tuple(path.split("/")), at + 1) for at, (host, path) in enumerate(pairs)]


def test_hosts_stand_in_fabric_order_with_numbers_read_as_numbers():
    built = build(entries(("gpu10", "s/l2"), ("gpu9", "s/l2"), ("gpu3", "s/l10"), ("gpu4", "r/l1")))
    assert built.hosts == ("gpu4", "gpu9", "gpu10", "gpu3")
    assert built.tiers == 3
    assert built.switch_of.tolist() == [[0, 1, 2, 3], [0, 1, 1, 2], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert built.names[1] == (("r", "l1"), ("s", "l2"), ("s", "l10"))


@pytest.mark.parametrize(
    ("pairs", "tiers", "tier"),
    [
        pytest.param([("a", "l"), ("b", "l")], 1, 1, id="one leaf is a fabric of one tier"),
        pytest.param([("a", "l"), ("b", "m")], 2, 2, id="two roots get a switch above them"),
        pytest.param([("a", "s/l"), ("b", "s/m")], 2, 2, id="one root is the top itself"),
        pytest.param([("a", "s/l"), ("b", "s")], 2, 2, id="a host beside switches gets a leaf of its own"),
        pytest.param([("a", "r/s/l"), ("b", "r/m")], 3, 3, id="a short branch is padded at its top"),
        pytest.param([("a", "p/x"), ("b", "q/x")], 3, 3, id="switches of one name on two paths are two"),
    ],
)
def test_tiers_count_from_the_leaf(pairs, tiers, tier):
    built = build(entries(*pairs))
    assert built.tiers == tiers
    assert distance(built, built.id_of_host["a"], built.id_of_host["b"]) == tier


@given(st.lists(paths(), max_size=20), st.randoms(use_true_random=False))
def test_the_order_of_entries_changes_nothing(drawn, dice):
    listed = [MapEntry(f"h{at}", path, at) for at, path in enumerate(drawn)]
    shuffled = dice.sample(listed, len(listed))
    one, other = build(listed), build(shuffled)
    assert one.hosts == other.hosts
    assert one.names == other.names
    assert (one.switch_of == other.switch_of).all()


@given(fabrics())
def test_every_switch_is_one_run_inside_one_run_of_the_tier_above(built):
    assert (built.switch_of[-1] == 0).all()
    assert built.first_child[0].tolist() == built.starts[0].tolist()  # below a host there is the host
    for tier in range(1, built.tiers + 1):
        row = built.switch_of[tier]
        assert built.first_child[tier].tolist() == built.switch_of[tier - 1][built.starts[tier]].tolist()
        assert (np.diff(row) >= 0).all()
        assert [int(np.argmax(row == switch)) for switch in range(len(built.starts[tier]))] == built.starts[
            tier
        ].tolist()
        for switch in range(len(built.starts[tier - 1])):
            assert len(set(row[built.switch_of[tier - 1] == switch].tolist())) == 1


@given(fabrics())
def test_hosts_off_the_map_are_farther_than_mapped_ones_ever_are(built):
    known = [at for at in range(len(built.hosts)) if built.mapped[at]]
    strange = [at for at in range(len(built.hosts)) if not built.mapped[at]]
    longest = max((distance(built, a, b) for a in known for b in known), default=0)
    assert all(distance(built, a, b) > longest for a in strange for b in range(len(built.hosts)) if a != b)


@given(fabrics())
def test_distance_to_all_agrees_with_distance(built):
    for rule in DistanceRule:
        for host in range(len(built.hosts)):
            assert distances_from(built, host, rule).tolist() == [
                distance(built, host, other, rule) for other in range(len(built.hosts))
            ]


@given(fabrics(), st.data())
def test_the_common_tier_is_the_largest_distance(built, data):
    hosts = data.draw(st.lists(st.integers(0, len(built.hosts) - 1), max_size=5))
    assert common_tier(built, hosts) == max((distance(built, a, b) for a in hosts for b in hosts), default=0)


def test_strangers_are_known_once_and_sorted():
    built = with_unmapped_hosts(fabric([1, 1]), ["z10", "z9", "gpu0"])
    assert built.hosts == ("gpu0", "gpu1", "z9", "z10")
    second_fabric = with_unmapped_hosts(built, ["z9", "a"])
    assert second_fabric.hosts == ("gpu0", "gpu1", "z9", "z10", "a")
    assert second_fabric.tiers == built.tiers == 3
    assert with_unmapped_hosts(built, ["z9"]) is built


def test_an_empty_map_takes_strangers_all_equally_far():
    built = with_unmapped_hosts(EMPTY, ["b", "a", "c"])
    assert built.hosts == ("a", "b", "c")
    assert not built.mapped.any()
    assert {distance(built, a, b) for a in range(3) for b in range(3) if a != b} == {2}


def test_the_tables_are_frozen():
    built = fabric([2])
    with pytest.raises(ValueError, match="read-only"):
        built.switch_of[0, 0] = 1


@pytest.mark.parametrize(
    ("new", "share"),
    [
        pytest.param([("a", "s/l"), ("b", "s/l"), ("c", "s/m"), ("d", "s/m")], 0.0, id="nothing moved"),
        pytest.param([("a", "s/l"), ("b", "s/m"), ("c", "s/m"), ("d", "s/m")], 0.25, id="one host moved"),
        pytest.param([("a", "s/l"), ("c", "s/m")], 0.5, id="hosts that vanish have moved"),
        pytest.param(
            [("a", "s/l"), ("b", "s/l"), ("c", "s/m"), ("d", "s/m"), ("e", "s/m")], 0.0, id="new ones have not"
        ),
        pytest.param([], 1.0, id="an emptied map moved everything"),
        pytest.param([("a", "s/x"), ("b", "s/x"), ("c", "s/y"), ("d", "s/y")], 0.0, id="leaves have other names"),
        pytest.param([("a", "t/x"), ("b", "t/x"), ("c", "t/y"), ("d", "t/y")], 0.0, id="all switches have other names"),
        pytest.param([("a", "s/x"), ("b", "s/x"), ("c", "s/x"), ("d", "s/x")], 0.5, id="two leaves are one"),
        pytest.param([("a", "s/l"), ("b", "s/l"), ("c", "t/m"), ("d", "t/m")], 0.5, id="a leaf has another spine"),
        pytest.param([("a", "s/l"), ("c", "s/l"), ("b", "s/m"), ("d", "s/m")], 0.5, id="hosts have changed places"),
        pytest.param([("a", "r/s/l"), ("b", "r/s/l"), ("c", "r/s/m"), ("d", "r/s/m")], 1.0, id="one more tier"),
    ],
)
def test_moved_share(new, share):
    old = build(entries(("a", "s/l"), ("b", "s/l"), ("c", "s/m"), ("d", "s/m")))
    assert moved_share(old, build(entries(*new))) == share
    assert moved_share(EMPTY, old) == 0.0


@pytest.mark.parametrize(
    ("order", "crossings", "switches"),
    [
        pytest.param([], (0, 0, 0), (0, 0, 0), id="nobody"),
        pytest.param([0], (0, 0, 0), (1, 1, 1), id="one rank"),
        pytest.param([0, 1], (0, 0, 0), (1, 1, 1), id="one leaf"),
        pytest.param([0, 1, 2, 3], (2, 0, 0), (2, 1, 1), id="two leaves, each left once"),
        pytest.param([0, 2, 1, 3], (4, 0, 0), (2, 1, 1), id="two leaves in a bad order"),
        pytest.param([0, 2, 4, 6], (4, 2, 0), (4, 2, 1), id="four leaves of two spines"),
    ],
)
def test_cost_counts_the_edges_that_leave_a_switch(order, crossings, switches):
    built = fabric([2, 2], [2, 2])
    paid = ring_cost(built, order)
    assert (paid.crossings, paid.switches, paid.total) == (crossings, switches, sum(crossings))


@pytest.mark.contract("CS-04")
def test_scores_fall_with_every_tier_and_unknown_is_last():
    built = with_unmapped_hosts(fabric([2, 2], [2, 2]), ["x"])
    host_scores = scores(built, [], anchors=[0])
    assert host_scores[1] > host_scores[2] == host_scores[3] > host_scores[4] == host_scores[7] > host_scores[8] == 0
    assert scores(built, [], anchors=[0], rule=DistanceRule.LEAF_ONLY).tolist() == [9, 7, 0, 0, 0, 0, 0, 0, 0]


def test_planned_hosts_get_ten_and_no_plan_gives_equal_scores():
    built = fabric([2, 2], [2, 2])
    assert scores(built, [2, 3]).tolist()[2:4] == [10, 10]
    assert max(scores(built, [2, 3]).tolist()[4:]) < min(scores(built, [2, 3]).tolist()[:2]) < 10
    assert set(scores(built, []).tolist()) == {0}
    assert scores(EMPTY, []).tolist() == []


@pytest.mark.parametrize(
    ("tiers", "steps"),
    [
        pytest.param(1, [9], id="one tier"),
        pytest.param(2, [9, 5], id="two, far apart"),
        pytest.param(4, [9, 7, 5, 3], id="four"),
        pytest.param(9, [9, 8, 7, 6, 5, 4, 3, 2, 1], id="nine, a step each"),
        pytest.param(10, [9, 8, 7, 6, 5, 4, 3, 2, 1, 1], id="more than there are steps: the widest share the last"),
        pytest.param(12, [9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 1], id="however many there are"),
    ],
)
def test_the_score_of_each_tier_away_from_the_gang(tiers, steps):
    path = tuple(f"s{at}" for at in range(tiers))
    hosts = {"beside": path, **{f"h{at}": path[: tiers - at] for at in range(tiers)}}
    built = build(MapEntry(host, above, 1) for host, above in hosts.items())
    own_host = built.id_of_host["h0"]
    by_tier = {distance(built, own_host, at): score for at, score in enumerate(scores(built, [], [own_host]).tolist())}
    assert [by_tier.get(tier) for tier in range(tiers)] == steps


@pytest.mark.contract("CS-03")
@given(fabrics(), st.data())
def test_scores_are_integers_from_0_to_10(built, data):
    hosts = st.lists(st.integers(0, len(built.hosts) - 1), max_size=4)
    host_scores = scores(built, data.draw(hosts), data.draw(hosts), data.draw(st.sampled_from(DistanceRule)))
    assert host_scores.dtype == np.int8
    assert len(host_scores) == len(built.hosts)
    assert all(0 <= score <= 10 for score in host_scores.tolist())


def test_the_empty_map_is_the_one_that_is_built_of_no_entries():
    built = build(())
    assert (EMPTY.hosts, EMPTY.tiers, EMPTY.names, EMPTY.paths) == (built.hosts, built.tiers, built.names, built.paths)
    for ours, theirs in ((EMPTY.switch_of, built.switch_of), (EMPTY.starts[1], built.starts[1])):
        assert ours.shape == theirs.shape
