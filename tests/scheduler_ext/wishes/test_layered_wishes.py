"""Wishes within a gang, as users write them: layers, groups, roles, meshes, even shares, sets that keep apart.

In each row the place that the gang would have without the wish is another one, and is there to be had.
"""

import json
import re
from pathlib import Path

import pytest

from tests.scheduler_ext.wishes.stage import BLOCK, HOSTS, RACK, Stage, pod
from tests.scheduler_ext.wishes.test_wishes import group, job, kai_group, leaves, lws, volcano, within
from turnout.jobs.gang import Dialect
from turnout.jobs.wishes import kai, koordinator, kueue, sets
from turnout.jobs.wishes import volcano as volcano_words
from turnout.kube import labels
from turnout.scheduler_ext.model import EventReason


def only(**free):
    """Every host is full but these, which have so many GPUs left; s0l1="3" opens three hosts of that leaf whole."""
    left = {}
    for name, much in free.items():
        if "h" in name:
            left[name] = much
        else:
            left.update({f"{name}h{at}": 8 for at in range(much)})
    return {name: 8 - left.get(name, 0) for name in HOSTS if left.get(name, 0) < 8}


def layers(*sizes):
    return {kueue.LAYERS: json.dumps([{"topology": level, "size": size} for level, size in sizes])}


def gather(*rules):
    return {koordinator.SPEC: json.dumps({"gatherStrategy": [
        {"layer": layer, "strategy": "PreferGather", "podCountMultiple": size} for layer, size in rules]})}  # fmt: skip


def parted(sizes, gpus=8):
    """Pods of a Volcano Job whose task is cut into partitions of these sizes."""
    parts = [part for part, size in enumerate(sizes) for _ in range(size)]
    return [
        pod(f"g-{at}", gpus, {labels.VOLCANO_GROUP: "g"}, {labels.VOLCANO_TASK_INDEX: str(at),
            labels.VOLCANO_TASK_SPEC: "w", "volcano.sh/partition-id": str(part)})
        for at, part in enumerate(parts)
    ]  # fmt: skip


def policy(minimum, size=0, tier=1, **more):
    """A Volcano PodGroup whose partitions each stay in a domain."""
    rule = {
        "name": "w", "subGroupSize": size or 1, "labelSelector": {"matchLabels": {labels.VOLCANO_TASK_SPEC: "w"}},
        "matchLabelKeys": ["volcano.sh/partition-id"],
        "networkTopology": {"mode": "hard", "highestTierAllowed": tier}, **more,
    }  # fmt: skip
    return group(minMember=minimum, subGroupPolicy=[rule])


def roles(**sizes):
    """Pods of a Volcano Job of several tasks, 8 GPUs each."""
    return [
        pod(f"g-{task}-{at}", 8, {labels.VOLCANO_GROUP: "g", labels.VOLCANO_TASK_SPEC: task},
            {labels.VOLCANO_TASK_INDEX: str(at)})
        for task, size in sizes.items() for at in range(size)
    ]  # fmt: skip


def subgroups(size, of):
    """Pods of one group of a LeaderWorkerSet in subgroups, each exclusive in a rack."""
    pods = lws(1, size, {sets.LWS_SUBGROUP: RACK})
    for at, each in enumerate(pods):
        each["metadata"]["labels"][sets.LWS_SUBGROUP_INDEX] = str(at // of)
    return pods


def subgrouped(**sizes):
    """Pods of KAI's subgroups."""
    return [
        pod(f"g-{name}-{at}", 8, {labels.KAI_GROUP: "g"}, {kai.SUBGROUP: name})
        for name, size in sizes.items() for at in range(size)
    ]  # fmt: skip


def subgroup(name, minimum=None, level="", **more):
    """An entry of KAI's subGroups."""
    raw_subgroup = {"name": name, **({} if minimum is None else {"minMember": minimum}), **more}
    return {**raw_subgroup, "topologyConstraint": within(level)} if level else raw_subgroup


def by_leaf(placement, *names):
    """The leaves of some pods."""
    return {placement[name][:4] for name in names}


def runs(of, level=4):
    """Each run of so many neighbouring ranks lies under one switch."""
    return lambda placement: all(
        len({placement[f"g-{at}"][:level] for at in range(first, min(first + of, len(placement)))}) == 1
        for first in range(0, len(placement), of)
    )


def shares(*counts):
    return lambda placement: leaves(placement) == sorted(counts, reverse=True)


def all_of(*checks):
    return lambda placement: all(check(placement) for check in checks)


def no_one(placement):
    return not placement


WHOLE = {"layer": "SpineLayer", "strategy": "MustGather"}
PAIRS_IN_BLOCKS = layers((BLOCK, 4), (RACK, 2))

ROWS = [
    # Layers.
    pytest.param(job(8, notes=PAIRS_IN_BLOCKS), only(s0l0=3, s0l1=1, s1l0=3, s1l1=1), [], no_one, 0, "",
        id="Kueue: blocks hold four, but not as pairs"),
    pytest.param(job(8, notes=layers((BLOCK, 6), (RACK, 4))), only(s0l0=4, s0l1=4, s1l0=4), [],
        lambda placement: len(placement) == 8, 8, "it does not divide 6", id="Kueue: layers that do not nest are told"),
    # Groups.
    pytest.param(parted([3, 3]), only(s0l0=4, s0l1=2), [policy(6)], no_one, 0, "", id="Volcano: no leaf for one"),
    pytest.param(parted([2, 2, 2]), only(s0l0=2, s0l1=1, s1l0=1), [policy(2, minSubGroups=2)], no_one, 0, "",
        id="Volcano: fewer groups than must start"),
    pytest.param(subgrouped(a=3, b=3), only(s0l0=4, s0l1=2), [kai_group(subGroups=[
        subgroup("a", 3, RACK), subgroup("b", 3, RACK)])], no_one, 0, "", id="KAI: no rack for one subgroup"),
    pytest.param(subgrouped(a=2, b=2), only(s0l0=3, s0l1=3), [kai_group(subGroups=[subgroup("both", level=RACK),
        subgroup("a", 2, parent="both"), subgroup("b", 2, parent="both")])], no_one, 0, "",
        id="KAI: no rack for two subgroups of one parent"),
    pytest.param(subgrouped(a=4), only(s0l0=4), [kai_group(subGroups=[subgroup("a", 2), subgroup("b", 2)])], no_one, 0,
        "", id="KAI: pods enough, and none of one subgroup"),
    pytest.param(subgrouped(a=2, b=2), only(s0l0=3), [kai_group(subGroups=[subgroup("a", 2), subgroup("b", 2)])],
        no_one, 0, "", id="KAI: not room enough for one subgroup"),
    pytest.param(subgrouped(a=2, b=2), only(s0l0=2, s0l1=2, s1l0=3), [kai_group(subGroups=[
        subgroup("both", level=BLOCK), subgroup("a", 2, RACK, parent="both"), subgroup("b", 2, RACK, parent="both")])],
        lambda placement: len(by_leaf(placement, "g-a-0", "g-a-1")) == 1, 4,
        "spec.subGroups both: its level is not kept, because", id="KAI: a level around a level is told"),
    pytest.param(subgrouped(a=2, b=2, c=2), only(s0l0=2, s0l1=1, s1l0=1), [kai_group(minSubGroup=2, subGroups=[
        subgroup(name, 2, RACK) for name in "abc"])], no_one, 0, "", id="KAI: fewer subgroups than must start"),
    pytest.param(subgrouped(a=4, b=1), only(s0l0=4, s0l1=4), [kai_group(minSubGroup=2, subGroups=[
        subgroup(name, 2) for name in "abc"])], no_one, 0, "", id="KAI: a subgroup of too few pods does not count"),
    pytest.param(subgrouped(a=2, b=1), only(s0l0=4), [kai_group(minSubGroup=1, subGroups=[subgroup("a", 2),
        subgroup("b", 1)])], shares(3), 3, "spec.minSubGroup is not kept: all 2 start together, not 1 of them",
        id="KAI: fewer of unlike subgroups are told"),
    pytest.param(subgrouped(a=2, b=2), only(s0l0=4), [kai_group(subGroups=[subgroup("both", minSubGroup=1),
        subgroup("a", 2, parent="both"), subgroup("b", 2, parent="both")])], shares(4), 4,
        "spec.subGroups both: minSubGroup is not kept", id="KAI: fewer subgroups of a parent are told"),
    pytest.param(subgrouped(a=1, b=1), only(s0l0=4), [kai_group(minMember=2, subGroups=[subgroup("a", parent="b"),
        subgroup("b", parent="a")])], shares(2), 2, "each subgroup is the parent of another",
        id="KAI: parents in a circle are told"),
    pytest.param(subgrouped(a=1), only(s0l0=4), [kai_group(subGroups=[subgroup("a", 1, parent="c")])], shares(1), 1,
        "spec.subGroups a has no parent c", id="KAI: a parent that is not there is told"),
    pytest.param(subgrouped(a=1), only(s0l0=4), [kai_group(subGroups=[subgroup("a", 1), subgroup("a", 2)])], shares(1),
        1, "each must have a name of its own", id="KAI: a name that comes twice is told"),
    pytest.param(subgrouped(s0=1), only(s0l0=4), [kai_group(subGroups=[subgroup(f"s{at}", 0) for at in range(65)])],
        shares(1), 1, "has 65 entries: only the first 64 are used", id="KAI: more subgroups than are read are told"),
    # Roles.
    pytest.param(roles(ps=2, worker=2), only(s0l0=3), [group(minMember=4, minTaskMember={"ps": 2, "worker": 2})],
        no_one, 0, "", id="Volcano: not enough of one task"),
    pytest.param(roles(ps=4), only(s0l0=4), [group(minMember=4, minTaskMember={"ps": 2, "worker": 2})], no_one, 0, "",
        id="Volcano: pods enough, and none of one task"),
    # Words on PodGroups and plain pods.
    pytest.param(volcano(4, notes={volcano_words.MODE: "hard", volcano_words.HIGHEST_TIER: "1"}),
        only(s0l0=2, s0l1=2), [], no_one, 0, "", id="Volcano: hard on the pods"),
    # Even shares.
    pytest.param(job(6, notes={labels.BALANCED: "true"}), only(s0l0=4, s0l1=2), [], shares(4, 2), 6, "",
        id="balanced: as nearly as there is room"),
    pytest.param(job(4, notes={labels.BALANCED: "true"}), only(s0l0=4, s0l1=4), [], shares(4), 4, "",
        id="balanced: one leaf that holds all is better"),
    pytest.param(job(4, notes={labels.BALANCED: "true", **layers((RACK, 2))}), only(s0l0=3, s0l1=2), [], shares(2, 2),
        4, "balanced is not kept, because the gang has layers", id="balanced: beside layers"),
    # Meshes.
    pytest.param(volcano(3, notes={labels.MESH: "dp=2,tp=8"}), only(s0l0=3), [group(minMember=3)], shares(3), 3,
        "turnout.dev/mesh is not kept",
        id="mesh: not of the gang's size"),
]  # fmt: skip


@pytest.mark.parametrize(("pods", "busy", "groups", "lands", "count", "sentence"), ROWS)
def test_a_wish_within_a_gang(pods, busy, groups, lands, count, sentence):
    stage = Stage(busy)
    for each in groups:
        stage.group(each, Dialect(each.get("apiVersion", Dialect.VOLCANO.value).split("/")[0]))
    node_by_pod = stage.schedule(pods)
    assert len(node_by_pod) == count, node_by_pod
    assert lands(node_by_pod), node_by_pod
    details = "".join(notice.detail for notice in stage.told if notice.reason is EventReason.WISH_NOT_KEPT)
    assert sentence in details
    assert bool(sentence) == bool(details)


@pytest.mark.parametrize(("notes", "fault"), [
    pytest.param({labels.MESH: "dp=2;tp=8"}, labels.MESH, id="not a mesh"),
    pytest.param({labels.MESH: "dp=2,dp=4"}, labels.MESH, id="an axis twice"),
    pytest.param({labels.MESH: "dp=99999,tp=99999"}, labels.MESH, id="more ranks than anybody has"),
    pytest.param({labels.MESH: "x=2"}, labels.MESH, id="an unknown axis"),
    pytest.param({labels.MESH: "tp=" + "8" * 5_000}, labels.MESH, id="a long number"),
    pytest.param({labels.BALANCED: "yes"}, labels.BALANCED, id="not true or false"),
    pytest.param({labels.TOGETHER: "a b"}, labels.TOGETHER, id="not a name"),
    pytest.param(layers((RACK, 3_000_000_000)), kueue.LAYERS, id="Kueue: a slice of more pods than anybody has"),
    pytest.param({kueue.GROUP: "a/b"}, kueue.GROUP, id="Kueue: a podset group that is no name"),
    pytest.param({koordinator.GROUPS: "a,b"}, koordinator.GROUPS, id="koordinator: groups that are no list"),
    pytest.param({volcano_words.MODE: "firm"}, volcano_words.MODE, id="Volcano: an unknown mode"),
])  # fmt: skip
def test_what_cannot_be_read_is_told(notes, fault):
    stage = Stage()
    stage.schedule(job(2, notes=notes))
    (detail,) = {notice.detail for notice in stage.told if notice.reason is EventReason.BAD_ANNOTATION}
    assert fault in detail


def test_groups_wait_until_as_many_pods_exist_as_must_start():
    stage = Stage(only(s0l0=3, s0l1=3))
    stage.group(policy(4))
    pods = parted([2, 2])
    assert not stage.schedule(pods[:3])
    assert any("3 of 4 exist" in notice.detail for notice in stage.told)
    node_by_pod = stage.schedule(pods)
    assert len(node_by_pod) == 4
    assert all_of(runs(2), shares(2, 2))(node_by_pod)


def test_gangs_of_one_named_set_stay_apart_and_others_do_not():
    notes = {labels.APART: RACK, labels.APART_SET: "serving"}
    stage = Stage(only(s0l0=4, s0l1=2))
    node_by_pod = stage.schedule([*job(2, notes=notes, name="a"), *job(2, notes=notes, name="b"), *job(2, name="c")])
    assert by_leaf(node_by_pod, "a-0", "a-1") != by_leaf(node_by_pod, "b-0", "b-1")
    assert len(node_by_pod) == 6


def test_apart_without_a_set_is_told():
    stage = Stage()
    stage.schedule(job(2, notes={labels.APART: RACK}))
    assert [labels.APART_SET in notice.detail for notice in stage.told] == [True]


def test_a_koordinator_podgroup_says_where_its_pods_go():
    stage = Stage(only(s0l0=2, s0l1=2))
    raw_group = group(minMember=4)
    raw_group["metadata"]["annotations"] = {koordinator.SPEC: json.dumps({"gatherStrategy": [
        {"layer": "LeafLayer", "strategy": "MustGather"}]})}  # fmt: skip
    stage.group(raw_group, Dialect.KOORDINATOR)
    marks = {labels.KOORD_POD_GROUP: "g"}
    assert not stage.schedule([pod(f"g-{at}", 8, {}, marks) for at in range(4)])


def test_the_page_for_users_names_each_word_that_is_read():
    page = (Path(__file__).parents[3] / "docs" / "wishes.md").read_text()
    words = [labels.MESH, labels.BALANCED, labels.APART, labels.APART_SET, labels.TOGETHER, volcano_words.MODE,
             volcano_words.HIGHEST_TIER, koordinator.GROUPS, kueue.GROUP, "minTaskMember", "minSubGroups",
             "matchLabelKeys", sets.LWS_SUBGROUP_INDEX, "kai.scheduler/topology"]  # fmt: skip
    assert [word for word in words if not re.search(rf"`{re.escape(word)}[`:]", page)] == []
