"""Trees of Kubernetes' own PodGroups: a CompositePodGroup's level is shared by all below it, and its minimum counts."""

import msgspec
import pytest

from tests.scheduler_ext.wishes.stage import BLOCK, RACK, Stage, pod
from tests.scheduler_ext.wishes.test_layered_wishes import only
from turnout.jobs.gang import Dialect
from turnout.kube.objects import PodGroup
from turnout.scheduler_ext.cluster.composites import MAX_TREE_GANGS
from turnout.scheduler_ext.model import EventReason


def group(name, minimum=None, parent=None, level=None, namespace="default", policy=None, created=0):
    """A PodGroup with a minimum of pods, or a CompositePodGroup with a minimum of groups."""
    spec = {"parentCompositePodGroupName": parent, "schedulingPolicy": policy or {"gang": {"minCount": minimum}}}
    if level is not None:
        spec["schedulingConstraints"] = {"topology": [{"key": level}]}
    stamp = f"2026-01-01T00:{created // 60:02}:{created % 60:02}Z"
    meta = {"name": name, "namespace": namespace, "uid": f"uid-group-{name}", "creationTimestamp": stamp}
    return {"kind": "PodGroup", "metadata": meta, "spec": spec}


def composite(name, minimum=None, parent=None, level=None, **more):
    policy = {"gang": {"minGroupCount": minimum}} if minimum else {"basic": {}}
    return msgspec.convert(group(name, None, parent, level, policy=policy, **more), PodGroup)


def gang(name, size, gpus=8):
    return [pod(f"{name}-{at}", gpus, schedulingGroup={"podGroupName": name}) for at in range(size)]


def staged(free, composites, groups):
    """A stage with CompositePodGroups, and PodGroups by name: (pods, parent, level)."""
    stage = Stage(only(**free))
    for each in composites:
        stage.view.view.groups.put_composite(each)
    for name, (size, parent, level) in groups.items():
        stage.group(group(name, size, parent, level), Dialect.NATIVE)
    return stage


def spans(node_by_pod, names, length):
    """The domains of the pods of these gangs. length: of a domain's name: 2 for a block, 4 for a rack."""
    return {host[:length] for name, host in node_by_pod.items() if name.split("-")[0] in names}


def reported(stage, reason=EventReason.WISH_NOT_KEPT):
    return {each.detail for each in stage.told if each.reason is reason}


PREFILL_DECODE = {"prefill": (2, "serve", RACK), "decode": (3, "serve", RACK)}


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_gangs_of_a_parent_share_its_block_and_each_has_a_rack_of_its_own(first):
    stage = staged({"s0l0": 2, "s1l0": 3, "s1l1": 2}, [composite("serve", 2, level=BLOCK)], PREFILL_DECODE)
    names = [first, *({"prefill", "decode"} - {first})]
    node_by_pod = stage.schedule([each for name in names for each in gang(name, PREFILL_DECODE[name][0])])
    assert len(node_by_pod) == 5
    assert spans(node_by_pod, names, 2) == {"s1"}
    assert all(len(spans(node_by_pod, [name], 4)) == 1 for name in names)
    assert reported(stage) == set()


def test_without_the_parent_each_goes_where_it_fits():
    groups = {name: (size, None, level) for name, (size, _, level) in PREFILL_DECODE.items()}
    stage = staged({"s0l0": 2, "s1l0": 3, "s1l1": 2}, [], groups)
    node_by_pod = stage.schedule([*gang("prefill", 2), *gang("decode", 3)])
    assert len(node_by_pod) == 5
    assert spans(node_by_pod, groups, 2) == {"s0", "s1"}


def test_neither_starts_where_no_block_holds_both():
    stage = staged({"s0l0": 2, "s1l0": 3}, [composite("serve", 2, level=BLOCK)], PREFILL_DECODE)
    assert stage.schedule([*gang("prefill", 2), *gang("decode", 3)]) == {}
    stage.leave("there-s1l1h0")
    stage.leave("there-s1l1h1")
    assert len(stage.schedule([*gang("decode", 3), *gang("prefill", 2)])) == 5


THREE = {"a": (2, "set", None), "b": (2, "set", None), "c": (2, "set", None)}


@pytest.mark.parametrize(
    ("minimum", "free", "gangs"),
    [
        pytest.param(3, 4, 0, id="all three must start, two fit"),
        pytest.param(2, 4, 2, id="two of three start"),
        pytest.param(2, 3, 0, id="one is too few"),
        pytest.param(None, 2, 1, id="under a basic policy each starts by itself"),
        pytest.param(3, 6, 3, id="all fit"),
        pytest.param(4, 8, 0, id="more than there are is waited for"),
    ],
)
def test_so_many_groups_start_together(minimum, free, gangs):
    stage = staged({"s0l0": min(free, 4), "s0l1": max(0, free - 4)}, [composite("set", minimum)], THREE)
    pods = [each for name in THREE for each in gang(name, 2)]
    stage.schedule(pods)
    assert len({name.split("-")[0] for name in stage.schedule(pods)}) == gangs
    assert len(stage.placed) == 2 * gangs


def test_a_group_that_comes_later_lets_the_others_start():
    stage = staged({"s0l0": 4}, [composite("set", 2)], {"a": (2, "set", None), "b": (2, "set", None)})
    assert not stage.schedule(gang("a", 2))
    stage.schedule(gang("b", 2))
    assert len(stage.schedule(gang("a", 2))) == 4


NESTED = [
    composite("root", 2, level=BLOCK),
    composite("left", 2, "root", RACK),
    composite("right", 2, "root", RACK),
]
LEAVES = {"a": (1, "left", None), "b": (2, "left", None), "c": (1, "right", None), "d": (2, "right", None)}


def test_each_level_of_a_nested_tree_has_its_own_domain():
    stage = staged({"s0l0": 3, "s1l0": 3, "s1l1": 4}, NESTED, LEAVES)
    node_by_pod = stage.schedule([each for name, (size, _, _) in LEAVES.items() for each in gang(name, size)])
    assert len(node_by_pod) == 6
    assert spans(node_by_pod, "abcd", 2) == {"s1"}
    assert len(spans(node_by_pod, "ab", 4)) == len(spans(node_by_pod, "cd", 4)) == 1


def test_a_nested_group_that_lacks_its_own_minimum_counts_for_nothing():
    stage = staged({"s1l0": 3, "s1l1": 2}, NESTED, LEAVES)
    pods = [each for name, (size, _, _) in LEAVES.items() for each in gang(name, size)]
    assert stage.schedule(pods) == {}
    one = staged({"s1l0": 3, "s1l1": 2}, [composite("root", 1, level=BLOCK), *NESTED[1:]], LEAVES)
    one.schedule(pods)
    assert {name[0] for name in one.schedule(pods)} in ({"a", "b"}, {"c", "d"})


def test_a_member_that_comes_back_joins_the_domain_of_the_others():
    stage = staged({"s0l0": 4, "s1l0": 3, "s1l1": 2}, [composite("serve", 2, level=RACK)],
                   {"a": (1, "serve", None), "b": (2, "serve", None)})  # fmt: skip
    stage.schedule([*gang("a", 1), *gang("b", 2)])
    assert spans(stage.placed, "ab", 4) == {"s1l0"}
    stage.leave_pod("a-0")
    assert spans(stage.schedule(gang("a", 1)), "ab", 4) == {"s1l0"}


@pytest.mark.parametrize(
    ("composites", "parent", "says"),
    [
        pytest.param([], "none", "CompositePodGroup none does not exist", id="the parent is not there"),
        pytest.param([composite("up", 1, "up")], "up", "up is above itself", id="it is its own parent"),
        pytest.param(
            [composite("x", 1, "y"), composite("y", 1, "x")], "x", "x is above itself", id="a cycle of two"
        ),
        pytest.param(
            [composite(f"l{at}", 1, f"l{at + 1}" if at < 3 else None) for at in range(4)], "l0",
            "the tree has more than 4 levels", id="a tree of five levels"
        ),
        pytest.param(
            [composite("up", 1, level=RACK, namespace="other")], "up", "up does not exist", id="of another namespace"
        ),
    ],
)  # fmt: skip
def test_a_tree_that_is_not_whole_is_reported_and_blocks_nobody(composites, parent, says):
    stage = staged({"s0l0": 4}, composites, {"a": (2, parent, None), "z": (2, None, None)})
    node_by_pod = stage.schedule([*gang("a", 2), *gang("z", 2)])
    assert len(node_by_pod) == 4
    assert any(says in detail for detail in reported(stage))


def test_a_branch_that_is_too_deep_is_left_out_of_its_tree():
    deep = [composite(f"l{at}", 1, f"l{at - 1}" if at else "set") for at in range(4)]
    groups = {"a": (2, "l3", None), "b": (2, "set", None), "c": (2, "set", None)}  # the oldest is below the branch
    stage = staged({"s0l0": 2, "s1l0": 4}, [composite("set", 2, level=RACK), *deep], groups)
    node_by_pod = stage.schedule([each for name in groups for each in gang(name, 2)])
    assert len(node_by_pod) == 6
    assert spans(node_by_pod, "bc", 4) == {"s1l0"}


def test_a_level_above_counts_though_the_root_is_not_there():
    stage = staged({"s0l0": 1, "s0l1": 1, "s1l0": 2}, [composite("low", 1, "gone", RACK)], {"a": (2, "low", None)})
    assert spans(stage.schedule(gang("a", 2)), "a", 4) == {"s1l0"}


def test_a_parent_that_is_deleted_no_longer_holds_its_gangs():
    stage = staged({"s0l0": 2, "s1l0": 3}, [composite("serve", 2, level=BLOCK)], PREFILL_DECODE)
    assert stage.schedule([*gang("prefill", 2), *gang("decode", 3)]) == {}
    stage.view.view.groups.drop_composite("default", "serve")
    assert len(stage.schedule([*gang("prefill", 2), *gang("decode", 3)])) == 5


def test_a_minimum_that_is_lowered_lets_groups_start():
    stage = staged({"s0l0": 4}, [composite("set", 3)], THREE)
    pods = [each for name in THREE for each in gang(name, 2)]
    assert stage.schedule(pods) == {}
    stage.view.view.groups.put_composite(composite("set", 2))
    stage.schedule(pods)
    assert len(stage.schedule(pods)) == 4


def crowd(minimum, count, level=None):
    """A stage with a tree of so many PodGroups of one pod each, by name."""
    stage = staged({"s0l0": 1, "s1l0": 4}, [composite("crowd", minimum, level=level)], {})
    names = [f"g{at:04}" for at in range(count)]
    for at, name in enumerate(names):
        stage.group(group(name, 1, "crowd", created=at), Dialect.NATIVE)
    return stage, names


def test_a_parent_with_more_groups_than_are_planned_blocks_no_other_gang():
    stage, names = crowd(1, MAX_TREE_GANGS + 20)
    late = gang(names[-1], 1)
    assert stage.schedule(late) == {}
    assert any(f"has more than {MAX_TREE_GANGS} PodGroups" in each.detail for each in stage.told)
    stage.group(group("alone", 2), Dialect.NATIVE)
    assert len(stage.schedule([*gang("alone", 2), *gang(names[0], 1)])) == 3


def test_groups_beyond_the_limit_follow_the_oldest_into_their_domain():
    stage, names = crowd(2, MAX_TREE_GANGS + 2, RACK)
    late = [each for name in names[-2:] for each in gang(name, 1)]
    assert stage.schedule([*late, *gang(names[0], 1)]) == {}  # of the oldest only one is there
    stage.schedule(gang(names[1], 1))
    stage.schedule(gang(names[0], 1))
    node_by_pod = stage.schedule(late)
    assert (len(node_by_pod), {host[:4] for host in node_by_pod.values()}) == (4, {"s1l0"})


@pytest.mark.parametrize("value", [7, {}, [], True, "", "x" * 5_000, None])
def test_hostile_fields_of_a_composite_are_bounded(value):
    stage = Stage(only(s0l0=4))
    for field in ("parentCompositePodGroupName", "schedulingPolicy", "schedulingConstraints"):
        raw = group("up", 1)
        raw["spec"][field] = value
        stage.view.view.groups.put_composite(msgspec.convert(raw, PodGroup))
        stage.group(group("a", 2, "up"), Dialect.NATIVE)
        child = group("b", 2)
        child["spec"]["parentCompositePodGroupName"] = value
        stage.group(child, Dialect.NATIVE)
    assert len(stage.schedule([*gang("a", 2), *gang("b", 2)])) == 4
