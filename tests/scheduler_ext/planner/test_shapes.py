"""Gangs of several shapes: their domain is chosen for all shapes together."""

import itertools
import random
from functools import cache

import pytest

from tests.kit import cluster, world
from tests.kit.world import REQUIRED, World, leaves
from turnout.kube import labels

CLUSTERS = 250  # of each way of asking
SIZES = [(8, 4), (4, 1), (8, 1), (4, 2), (3, 2), (5, 3)]


def gang(counts, notes=None, **more):
    """A gang with some pods of each number of GPUs: {gpus: pods}."""
    each = [gpus for gpus, count in counts.items() for _ in range(count)]
    notes = {labels.VOLCANO_GROUP: "bert", **(notes or {})}
    return [world.pod(f"bert-{at}", gpus, notes=notes, **more) for at, gpus in enumerate(each)]


def cluster_of(dice):
    """A cluster whose hosts hold strangers, and a gang of two shapes: (world, taken, counts)."""
    w = World(*(dice.randint(2, 5) for _ in range(dice.randint(2, 5))))
    busy_gpus = {name: dice.randint(0, 8) for name in w.names}
    w.put(*(world.pod(f"s-{name}", gpus, at=name) for name, gpus in busy_gpus.items() if gpus))
    large, small = dice.choice(SIZES)
    return w, busy_gpus, {large: dice.randint(1, 4), small: dice.randint(1, 6)}


def holds(free, counts):
    """True if hosts with this many free GPUs hold all pods of two sizes, by trying every way."""
    (large, many), (small, few) = counts.items()

    @cache
    def most_small(at, left):
        if at == len(free):
            return 0 if left == 0 else -1_000
        ways = range(min(left, free[at] // large) + 1)
        return max((free[at] - each * large) // small + most_small(at + 1, left - each) for each in ways)

    return most_small(0, many) >= few


@pytest.mark.parametrize("notes", [
    pytest.param({}, id="a gang that prefers"),
    pytest.param(REQUIRED, id="a gang that requires a leaf"),
])  # fmt: skip
def test_no_gang_is_spread_where_one_leaf_holds_all(notes):
    count, dice = 0, random.Random(23)
    for _ in range(CLUSTERS):
        w, busy_gpus, counts = cluster_of(dice)
        pods = gang(counts, notes)
        planned = w.put(*pods).plan(pods[0])
        groups = itertools.groupby(w.names, key=lambda name: name[0])
        able = any(holds(tuple(8 - busy_gpus[name] for name in hosts), counts) for _, hosts in groups)
        count += able
        assert not able or (len(planned) == len(pods) and len(leaves(planned)) == 1)
    assert CLUSTERS // 4 < count < CLUSTERS


def test_of_three_shapes_all_go_to_the_leaf_that_holds_them():
    w, pods = World(2, 3, 4), gang({8: 1, 4: 2, 2: 4}, REQUIRED)
    w.put(world.pod("there", 4, at="a1"), *pods)
    assert leaves(w.plan(pods[0])) == {"b"}


def packs(free, sizes):
    """True if hosts with this many free GPUs hold pods of these sizes, by trying every host for each pod."""
    if not sizes:
        return True
    largest, *others = sorted(sizes, reverse=True)
    holes = {hole for hole in free if hole >= largest}
    return any(packs((*_without(free, hole), hole - largest), others) for hole in sorted(holes))


def _without(free, hole):
    at = free.index(hole)
    return free[:at] + free[at + 1 :]


def draw_shapes(dice, shapes):
    """A cluster of small leaves whose hosts hold strangers, and pods of some sizes: (world, free by leaf, counts)."""
    w = World(*(dice.randint(2, 4) for _ in range(dice.randint(1, 3))))
    busy_gpus = {name: dice.choice([0, 0, 1, 2, 3, 4, 5]) for name in w.names}
    w.put(*(world.pod(f"s-{name}", gpus, at=name) for name, gpus in busy_gpus.items() if gpus))
    counts = {size: dice.randint(1, 3) for size in sorted(dice.sample(range(1, 7), shapes), reverse=True)}
    groups = itertools.groupby(w.names, key=lambda name: name[0])
    return w, [tuple(8 - busy_gpus[name] for name in hosts) for _, hosts in groups], counts


@pytest.mark.parametrize("shapes", [3, 4])
def test_no_gang_of_several_shapes_waits_where_one_leaf_holds_all(shapes):
    able, dice = 0, random.Random(7 + shapes)
    for _ in range(CLUSTERS):
        w, free, counts = draw_shapes(dice, shapes)
        pods = gang(counts, REQUIRED)
        planned = w.put(*pods).plan(pods[0])
        sizes = [size for size, count in counts.items() for _ in range(count)]
        fits = any(packs(leaf, sizes) for leaf in free)
        able += fits
        assert len(planned) == (len(pods) if fits else 0), (free, counts)
    assert CLUSTERS // 8 < able < CLUSTERS


def test_three_shapes_that_fill_three_hosts_find_their_leaf():
    w, pods = World(3, 3), gang({5: 1, 3: 3, 2: 2}, REQUIRED)
    w.put(*(world.pod(f"s-{name}", 8 - free, at=name) for name, free in zip(w.names, (5, 7, 6, 1, 1, 1), strict=True)))
    assert leaves(w.put(*pods).plan(pods[0])) == {"a"}


def test_a_leaf_past_the_first_sixty_four_is_found():
    """Each of the others holds the large pod or the small ones, and not both."""
    many = 70
    w = World(*([1] * (many - 1)), 2)
    w.put(*(world.pod(f"s{at}", 1, at=name) for at, name in enumerate(w.names) if at < many - 1))
    pods = gang({7: 1, 6: 1}, REQUIRED)
    assert len(w.put(*pods).plan(pods[0])) == 2


def test_members_that_run_keep_all_shapes_in_their_leaf():
    w, pods = World(3, 3), gang({8: 1, 4: 2}, REQUIRED)
    w.put(*pods)
    w.bind(pods[1], "b0")
    planned = w.plan(pods[0])
    assert (len(planned), leaves(planned)) == (2, {"b"})


def test_a_leaf_too_small_for_all_shapes_is_passed_over_for_a_spine():
    """Leaves a and b hang under one spine, c and d under the other; the large pod alone would fit tightest in a."""
    w, pods = World(1, 1, 2, 2), gang({8: 1, 4: 5})
    w.put(world.pod("there", 8, at="b0"), *pods)
    planned = w.plan(pods[0])
    assert (len(planned), leaves(planned)) == (6, {"c", "d"})


class TestLeader:
    """A member without a GPU, in a gang whose others have some."""

    def pods(self, leaders_notes, others=REQUIRED):
        notes = {labels.VOLCANO_GROUP: "bert"}
        leader = world.pod("bert-0", 0, notes={**notes, **leaders_notes})
        return [leader, *(world.pod(f"bert-{at}", 8, notes={**notes, **others}) for at in (1, 2))]

    @pytest.mark.parametrize("leaders_notes", [REQUIRED, {}], ids=["it asks itself", "the others ask"])
    def test_one_in_a_gang_that_must_stay_together_is_placed_in_its_domain(self, leaders_notes):
        w, pods = World(1, 2), self.pods(leaders_notes)
        node_by_pod = w.put(*pods).schedule(*pods)
        assert (len(node_by_pod), leaves(node_by_pod)) == (3, {"b"})

    @pytest.mark.parametrize(("host", "leaf"), [
        pytest.param("a0", {"b"}, id="where there is no room for the others: they go elsewhere"),
        pytest.param("b1", {"b"}, id="where there is: beside it"),
        pytest.param("x0", {"b"}, id="off the map"),
    ])  # fmt: skip
    def test_one_that_a_scheduler_bound_without_asking_holds_nobody_back(self, host, leaf):
        w, pods = World(1, 2, off_map=1), self.pods(REQUIRED)
        w.put(*pods)
        w.bind(pods[0], host)
        assert leaves(w.schedule(*pods[1:])) == leaf

    def test_where_nobody_must_have_a_place_it_is_left_to_the_scheduler(self):
        w, pods = World(1, 2), self.pods({}, {})
        assert w.put(*pods).fit(pods[0]).all_kept

    def test_one_that_asks_waits_where_the_domain_has_no_room_for_it(self):
        w, pods = World(2, 2), self.pods(REQUIRED)
        w.put(*pods, *(stranger(f"s-{name}", name, cpu=95) for name in w.names))
        assert w.fit(pods[0]).refusal is not None


def stranger(name, at, cpu):
    """A pod without a GPU that takes CPUs of a node."""
    one_pod = cluster.make_pod(name, 0)
    one_pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(cpu)
    return world.see(one_pod, at)


CHANNEL = {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "domain"}]}


class TestResourceClaims:
    """A ComputeDomain's channel is a claim beside the GPUs of the device plugin."""

    def test_gpus_of_the_device_plugin_are_placed_whatever_is_claimed_besides(self):
        w, pods = World(1, 3), gang({8: 3}, REQUIRED, **CHANNEL)
        node_by_pod = w.put(*pods).schedule(*pods)
        assert (len(node_by_pod), leaves(node_by_pod)) == (3, {"b"})

    def test_devices_that_only_a_claim_names_are_left_to_the_scheduler(self):
        w, pods = World(1, 3), gang({0: 3}, REQUIRED, **CHANNEL)
        assert w.put(*pods).fit(pods[0]).all_kept
