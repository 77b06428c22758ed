"""Groups within a gang that find their domains together: by one spine, by trying switches, beside what runs."""

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.kube import labels
from turnout.scheduler_ext.planner.ranks import mesh_traffic
from turnout.scheduler_ext.planner.request import PodBatch

PART = "volcano.sh/partition-id"


def parted(*sizes, at=(), gpus=8):
    """Pods of a Volcano Job in partitions of these sizes. at: the nodes of the first ones."""
    parts = [part for part, size in enumerate(sizes) for _ in range(size)]
    notes = {labels.VOLCANO_GROUP: "g", labels.VOLCANO_TASK_SPEC: "w"}
    places = [*at, *[""] * len(parts)]
    return [
        world.pod(
            f"g-{part}-{index}", gpus, places[index], notes=notes, marks={labels.RANK: str(index), PART: str(part)}
        )
        for index, part in enumerate(parts)
    ]


def policy(w, minimum, tier=1, gang_tier=None):
    """Let each partition stay within a tier. gang_tier: the tier that the whole gang must not leave."""
    rule = {
        "name": "w", "subGroupSize": 1, "matchLabelKeys": [PART],
        "networkTopology": {"mode": "hard", "highestTierAllowed": tier},
    }  # fmt: skip
    hard = {} if gang_tier is None else {"networkTopology": {"mode": "hard", "highestTierAllowed": gang_tier}}
    return w.put_group("g", minimum, subGroupPolicy=[rule], **hard)


def by_part(node_by_pod):
    """{partition: its leaves, as letters}."""
    found = {}
    for name, node in sorted(node_by_pod.items()):
        found.setdefault(name.split("-")[1], set()).add(node[0])
    return ["".join(sorted(leaves)) for leaves in found.values()]


@pytest.mark.parametrize(("world_of", "sizes", "found"), [
    pytest.param((2, 3, 2, 3), (2, 2), ["a", "b"], id="under one spine, though another leaf is tighter"),
    pytest.param((5, 4), (3, 2, 2, 2), ["a", "a", "b", "b"], id="where the largest first would leave one out"),
    pytest.param((2, 2, 3, 4), (3, 3), ["c", "d"], id="under the spine that holds them"),
    pytest.param((1, 1, 1, 1), (2,), None, id="nowhere, where no leaf holds a group"),
    pytest.param((5, 4), (3, 3, 3), None, id="nowhere, where all of them do not fit"),
])  # fmt: skip
def test_where_groups_go_that_each_stay_in_a_leaf(world_of, sizes, found):
    pods = parted(*sizes)
    w = policy(World(*world_of), len(pods)).put(*pods)
    assert (by_part(w.plan(pods[0])) or None) == found


def test_a_group_of_which_a_member_runs_goes_on_beside_it():
    pods = parted(3, 2, 2, 2, at=["a0"])
    w = policy(World(5, 4), 9).put(*pods)
    plan = w.plan(pods[1])
    assert len(plan) == 8
    assert by_part(plan)[0] == "a"


def test_switches_are_tried_beside_a_group_that_runs():
    pods = parted(3, 3, 2, 2, 2, at=["a0"])
    w = policy(World(8, 4), 12).put(*pods)
    assert by_part(w.plan(pods[1])) == ["a", "a", "a", "b", "b"]


def test_switches_are_tried_though_a_pod_without_a_gpu_is_elsewhere():
    pods = [*parted(3, 2, 2, 2), parted(1, at=["c0"], gpus=0)[0]]
    pods[-1].metadata.name, pods[-1].metadata.uid = "g-0-9", "uid-g-0-9"
    w = policy(World(5, 4, 1, 1), len(pods)).put(*pods)
    assert by_part(w.plan(pods[0])) == ["a", "a", "b", "b"]


def test_groups_of_a_wider_tier_may_use_two_leaves():
    pods = parted(4, at=[])
    w = policy(World(2, 2, 2, 2), 4, tier=2).put(*pods)
    assert by_part(w.plan(pods[0])) in (["ab"], ["cd"])


def test_groups_of_two_shapes_go_into_the_lowest_domain_of_both():
    """Six pods are more than the three whole hosts of leaf b, and two of them and four of a quarter fit there."""
    pods = [*parted(2), *[each for each in parted(2, 4, gpus=2) if each.metadata.name.startswith("g-1")]]
    w = policy(World(2, 3), len(pods)).put(*pods)
    assert by_part(w.plan(pods[0])) == ["b", "b"]


@pytest.mark.parametrize(("world_of", "sizes", "minimum", "gang_tier", "found"), [
    pytest.param((2, 2), (2, 2), 4, 2, ["a", "b"], id="two leaves of one block hold both groups"),
    pytest.param((2, 0, 2), (2, 2), 4, 2, None, id="two blocks of one leaf each do not"),
    pytest.param((2, 0, 2), (2, 2), 2, 2, ["a"], id="one group starts where the minimum is one group"),
    pytest.param((2, 0, 2, 2), (2, 2, 2), 4, 2, ["c", "d"], id="the block that holds most groups"),
    pytest.param((2, 2), (1, 1), 2, 1, ["a", "a"], id="a gang within a leaf"),
    pytest.param((1, 1), (1, 1), 2, 1, None, id="no leaf holds both groups"),
    pytest.param((2, 2), (1, 1), 2, 0, None, id="no host holds both groups"),
])  # fmt: skip
def test_groups_stay_within_the_level_of_their_gang(world_of, sizes, minimum, gang_tier, found):
    pods = parted(*sizes)
    w = policy(World(*world_of), minimum, gang_tier=gang_tier).put(*pods)
    assert (by_part(w.plan(pods[0])) or None) == found
    assert len(w.schedule(*pods)) == sum(sizes[: len(found or ())])


def test_a_gang_with_groups_starts_on_the_host_that_holds_it():
    pods = parted(1, 1, gpus=4)
    w = policy(World(1, 2), 2, gang_tier=0).put(*pods)
    assert len(set(w.plan(pods[0]).values())) == 1


def test_a_group_never_returns_outside_the_level_of_its_gang():
    pods = parted(2, 2, at=["a0", "a1"])
    w = policy(World(2, 0, 2), 2, gang_tier=2).put(*pods)
    assert w.plan(pods[2]) == {}
    assert not w.fit(pods[2]).nodes
    w.view.drop_pod(pods[0].metadata.uid)
    replacement = parted(2, 2)[0]
    assert w.put(replacement).plan(replacement) == {"g-0-0": "a0"}


def test_a_gang_whose_members_run_in_two_domains_of_its_level_waits():
    pods = parted(2, 2, at=["a0", "", "c0"])
    del pods[3]
    w = policy(World(2, 0, 2), 4, gang_tier=2).put(*pods)
    assert w.plan(pods[1]) == {}


@pytest.mark.parametrize(("mesh", "pods"), [
    pytest.param("dp=2,tp=8", 2, id="a mesh of all its ranks"),
    pytest.param("dp=4,tp=8", None, id="no mesh of more ranks than it has"),
    pytest.param("", None, id="no mesh"),
])  # fmt: skip
def test_what_the_pods_of_a_mesh_exchange(mesh, pods):
    gang_pods = world.volcano("bert", 2, notes={labels.MESH: mesh} if mesh else {})
    w = World(2).put(*gang_pods)
    members = tuple(w.member(each) for each in gang_pods)
    (gang,) = w.view.gangs.values()
    traffic = mesh_traffic(gang, PodBatch(members[0].shape, members, 0, ranks_per_pod=8))
    assert (None if traffic is None else len(traffic)) == pods
