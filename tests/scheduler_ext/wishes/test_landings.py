"""Sixty wishes and more, in the words of those who have them, that their pods land by.

Each row has a tempting place: where the gang would be without the wish, or with it misread. A test holds every row to
that, so that none can pass by chance. Rows of wishes that end in waiting, or are told, are in the tables beside.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.scheduler_ext.wishes.stage import BLOCK, HOSTS, RACK, Stage, pod
from tests.scheduler_ext.wishes.test_layered_wishes import (
    gather,
    layers,
    only,
    parted,
    policy,
    roles,
    runs,
    subgroup,
    subgrouped,
    subgroups,
)
from tests.scheduler_ext.wishes.test_wishes import (
    group,
    hosts,
    job,
    jobset,
    kai_gang,
    kai_group,
    koord,
    leaves,
    lws,
    native,
    ours,
    pod_group,
    spines,
    topology,
    volcano,
    within,
)
from turnout.jobs.gang import Dialect
from turnout.jobs.wishes import kai, koordinator, kueue, sets
from turnout.jobs.wishes import volcano as volcano_words
from turnout.kube import labels
from turnout.scheduler_ext.server.requests import Verb

Lands = Callable[[dict[str, str]], bool]
Made = list[dict[str, Any]]

HOST = labels.HOSTNAME
# What a pod says of its gang, and not of where it wants to be.
_OF_GANGS = (labels.VOLCANO_GROUP, labels.KOORD_NAME, labels.KOORD_MIN, labels.KAI_GROUP, labels.LWS_SIZE)
_MINIMUM = ("minMember", "schedulingPolicy")

TWO_LEAVES = only(s0l0=2, s0l1=2)  # room for four, in no leaf, until two more hosts of the first are free
A_LEAF = ("there-s0l0h2", "there-s0l0h3")
TWO_SPINES = only(s0l0=2, s1l0=2)  # room for four, under no spine, until two more leaves of the first are free
A_SPINE = ("there-s0l1h0", "there-s0l2h0")
TWO_HOSTS = only(s0l0h0=4, s0l0h1=4)  # room for four of 2 GPUs, on no host, until one far away is free
A_HOST = ("there-s1l2h3",)
HOLES = {"s0l1h0": 6, "s1l2h3": 5}


@dataclass(frozen=True, slots=True)
class Landing:
    """A wish and where its pods land. freed: who leaves after everybody was asked once, in vain.

    misread: the pods as somebody would have them who reads the wish wrongly; none where that is to read nothing.
    scored: a scheduler that asks for scores alone puts them there, too.
    """

    name: str
    pods: Made
    lands: Lands
    taken: dict[str, int]
    groups: Made = field(default_factory=list)
    dialect: Dialect = Dialect.VOLCANO
    freed: Sequence[str] = ()
    misread: Made | None = None
    scored: bool = False


def one_leaf(placement):
    return len(leaves(placement)) == 1


def one_spine(placement):
    return spines(placement) == 1


def one_host(placement):
    return len(hosts(placement)) == 1


def by_leaf(*counts):
    return lambda placement: leaves(placement) == list(counts)


def by_host(*counts):
    return lambda placement: hosts(placement) == list(counts)


def under(leaf, *names):
    return lambda placement: {placement.get(name, "")[: len(leaf)] for name in names or placement} == {leaf}


def both(*checks):
    return lambda placement: all(check(placement) for check in checks)


def in_the_holes(placement):
    return set(placement.values()) == set(HOLES)


def in_racks(*names):
    """The pods of each subgroup lie under one leaf."""
    return lambda placement: all(
        len({host[:4] for pod_name, host in placement.items() if pod_name.split("-")[1] == name}) == 1 for name in names
    )


def upwards(*numbers):
    """The pods of these numbers follow the fabric."""
    return lambda placement: [placement[f"g-{at}"] for at in numbers] == sorted(placement.values())


def apart(level):
    """No two gangs, by the names of their pods, share a domain, and none is in two."""

    def lands(placement):
        pairs = {(name.rsplit("-", 1)[0], host[:level]) for name, host in placement.items()}
        return len(pairs) == len({name for name, _ in pairs}) == len({domain for _, domain in pairs})

    return lands


def annotated(notes):
    """A koordinator PodGroup with these annotations."""
    raw_group = group(minMember=4)
    raw_group["metadata"]["annotations"] = notes
    return raw_group


def must(layer):
    return {koordinator.SPEC: json.dumps({"gatherStrategy": [{"layer": layer, "strategy": "MustGather"}]})}


def musts(*names):
    rules = [{"layer": name, "strategy": "MustGather"} for name in names]
    return {koordinator.SPEC: json.dumps({"gatherStrategy": rules})}


def hard(tier):
    return {volcano_words.MODE: "hard", volcano_words.HIGHEST_TIER: tier}


def leaf(name, pods, groups=(), **more):
    """The gang waits beside room in two leaves, and lands in one."""
    return Landing(name, pods, under("s0l0"), TWO_LEAVES, list(groups), freed=A_LEAF, **more)


def spine(name, pods, groups=(), **more):
    """The gang waits beside room under two spines, and lands under one."""
    return Landing(name, pods, under("s0"), TWO_SPINES, list(groups), freed=A_SPINE, **more)


def host(name, pods, groups=(), **more):
    """The gang waits beside room on two hosts, and lands on one."""
    return Landing(name, pods, under("s1l2h3"), TWO_HOSTS, list(groups), freed=A_HOST, **more)


def prefers(name, pods, misread, groups=(), **more):
    """The gang lands in two leaves at once, where one that must have a leaf waits."""
    return Landing(name, pods, by_leaf(2, 2), TWO_LEAVES, list(groups), misread=misread, **more)


MUST = volcano(4, notes=ours("required"))

A_RACK = [
    leaf("ours: required is a leaf", MUST),
    leaf("ours: tier 1", volcano(4, notes=ours("required", topology_tier="1"))),
    leaf("ours: rack, a word", volcano(4, notes=ours("required", topology_tier="rack"))),
    leaf("ours: a label's key", volcano(4, notes=ours("required", topology_tier=RACK))),
    leaf("Kueue: required rack", job(4, notes={kueue.REQUIRED: RACK})),
    leaf("Volcano: hard, tier 1", volcano(4), [topology(mode="hard", highestTierAllowed=1)]),
    leaf("Volcano: hard is the mode of who says none", volcano(4), [topology(highestTierAllowed=1)]),
    leaf("Volcano: a leaf by its name", volcano(4), [topology(mode="hard", highestTierName="leaf")]),
    leaf("Volcano: hard, on the pods", volcano(4, notes=hard("1"))),
    leaf("koordinator: must gather under a leaf", koord(4, notes=must("LeafLayer"))),
    leaf("koordinator: the narrower of two layers", koord(4, notes=musts("SpineLayer", "LeafLayer"))),
    leaf("koordinator: on the PodGroup", [pod(f"g-{at}", 8, {}, {labels.KOORD_POD_GROUP: "g"}) for at in range(4)],
        [annotated(must("LeafLayer"))], dialect=Dialect.KOORDINATOR),
    leaf("Kubernetes: constrained by rack", native(4), [pod_group(4, RACK)], dialect=Dialect.NATIVE),
    leaf("KAI: required rack", volcano(4, notes={kai.REQUIRED: RACK})),
    leaf("KAI: required rack, on the PodGroup", kai_gang(4), [kai_group(minMember=4, topologyConstraint=within(RACK))],
        dialect=Dialect.KAI),
    leaf("KAI: a rack for a parent of all", subgrouped(a=2, b=2), [kai_group(subGroups=[
        subgroup("both", level=RACK), subgroup("a", 2, parent="both"), subgroup("b", 2, parent="both")])],
        dialect=Dialect.KAI),
    leaf("JobSet: a rack for a job", jobset(1, 4, {sets.JOBSET: RACK})),
    leaf("LWS: a rack for a group", lws(1, 4, {sets.LWS: RACK})),
]  # fmt: skip

A_BLOCK = [
    spine("ours: tier 2", volcano(4, notes=ours("required", topology_tier="2"))),
    spine("ours: a block's label", volcano(4, notes=ours("required", topology_tier=BLOCK))),
    spine("Kueue: required block", job(4, notes={kueue.REQUIRED: BLOCK})),
    spine("Volcano: hard, tier 2", volcano(4), [topology(mode="hard", highestTierAllowed=2)]),
    spine("Volcano: a spine by its name", volcano(4), [topology(mode="hard", highestTierName="spine")]),
    spine("Volcano: a higher tier on the pods", volcano(4, notes=hard("2"))),
    spine("koordinator: must gather under a spine", koord(4, notes=must("SpineLayer"))),
    spine("Kubernetes: constrained by block", native(4), [pod_group(4, BLOCK)], dialect=Dialect.NATIVE),
    spine("KAI: required block", volcano(4, notes={kai.REQUIRED: BLOCK})),
    spine("KAI: required block, on the PodGroup", kai_gang(4), [kai_group(minMember=4,
        topologyConstraint=within(BLOCK))], dialect=Dialect.KAI),
    spine("JobSet: a block for a job", jobset(1, 4, {sets.JOBSET: BLOCK})),
]  # fmt: skip

A_NODE = [
    host("ours: tier 0", volcano(4, 2, ours("required", topology_tier="0"))),
    host("ours: host, a word", volcano(4, 2, ours("required", topology_tier="host"))),
    host("Kueue: required host", job(4, 2, {kueue.REQUIRED: HOST})),
    host("koordinator: must gather on a node", koord(4, 2, must("NodeTopologyLayer"))),
    host("KAI: required host", volcano(4, 2, {kai.REQUIRED: HOST})),
    host("KAI: required host, on the PodGroup", kai_gang(4, 2), [kai_group(minMember=4,
        topologyConstraint=within(HOST))], dialect=Dialect.KAI),
    host("Kubernetes: constrained by host", [pod(f"g-{at}", 2, schedulingGroup={"podGroupName": "g"})
        for at in range(4)], [pod_group(4, HOST)], dialect=Dialect.NATIVE),
]  # fmt: skip

PREFERRED = [
    prefers("ours: preferred", volcano(4, notes=ours("preferred")), MUST, scored=True),
    prefers("Kueue: preferred rack", job(4, notes={kueue.PREFERRED: RACK}), MUST, scored=True),
    prefers("koordinator: prefer gather", koord(4, notes=gather(("LeafLayer", 1))), MUST),
    prefers("KAI: preferred rack", volcano(4, notes={kai.PREFERRED: RACK}), MUST),
    prefers("KAI: preferred rack, on the PodGroup", kai_gang(4), MUST, [kai_group(minMember=4,
        topologyConstraint=within(preferred=RACK))], dialect=Dialect.KAI),
    prefers("Volcano: soft", volcano(4), MUST, [topology(mode="soft", highestTierAllowed=1)]),
    Landing("ours: unconstrained fills gaps", job(2, 2, ours("unconstrained")), in_the_holes, HOLES, scored=True),
    Landing("Kueue: unconstrained fills gaps", job(2, 2, {kueue.UNCONSTRAINED: "true"}), in_the_holes, HOLES),
]  # fmt: skip

FIVES = dict.fromkeys(HOSTS, 5)  # three GPUs are left on each host
PAIRS_IN_BLOCKS = layers((BLOCK, 4), (RACK, 2))
FOUR_THREES = only(s0l0=3, s0l1=3, s1l0=3, s1l1=3)
THREE_AND_ONE = only(s0l0=3, s0l1=1, s1l0=1, s1l1=2)  # nearest are 3+1
THREES_AND_FOURS = only(s0l0=4, s0l1=3, s0l2=1, s1l0=4)

RUNS = [
    Landing("ours: a multiple a host", volcano(6, 1, {labels.PODS_PER_HOST_MULTIPLE: "2"}), by_host(2, 2, 2), FIVES,
        scored=True),
    Landing("Kueue: slices of a host", job(6, 1, {kueue.SLICE_LEVEL: HOST, kueue.SLICE_SIZE: "2"}), by_host(2, 2, 2),
        FIVES),
    Landing("koordinator: pairs a host", koord(6, 1, gather(("NodeTopologyLayer", 2))), by_host(2, 2, 2), FIVES),
    Landing("Kueue: slices of two in a rack", job(4, notes={kueue.SLICE_LEVEL: RACK, kueue.SLICE_SIZE: "2"}),
        both(by_leaf(2, 2), runs(2)), THREE_AND_ONE, scored=True),
    Landing("Kueue: slices of four in a rack", job(8, notes={kueue.SLICE_LEVEL: RACK, kueue.SLICE_SIZE: "4"}),
        both(by_leaf(4, 4), runs(4)), THREES_AND_FOURS),
    Landing("koordinator: fours under a leaf", koord(8, notes=gather(("LeafLayer", 4))), both(by_leaf(4, 4), runs(4)),
        THREES_AND_FOURS),
    Landing("Kueue: a block, in slices of a rack", job(4, notes={kueue.REQUIRED: BLOCK, kueue.SLICE_LEVEL: RACK,
        kueue.SLICE_SIZE: "2"}), both(by_leaf(2, 2), one_spine), only(s0l0=3, s0l1=1, s1l0=2, s1l1=2)),
    Landing("Kueue: fours in a block, pairs in a rack", job(8, notes=PAIRS_IN_BLOCKS),
        both(runs(4, 2), runs(2), by_leaf(2, 2, 2, 2)), FOUR_THREES),
    Landing("Kueue: three layers down to the host", job(8, notes=layers((BLOCK, 4), (RACK, 2), (HOST, 2)), gpus=4),
        both(runs(4, 2), runs(2, 6)), only(s0l0=1, s0l1=1, s1l0=1, s1l1h0=4, s1l2h0=4, s1l2h1=8)),
    Landing("koordinator: multiples in two layers", koord(8, notes=gather(("SpineLayer", 4), ("LeafLayer", 2))),
        both(runs(4, 2), runs(2)), FOUR_THREES),
    Landing("koordinator: multiples of a leaf and a host", koord(6, 4, gather(("LeafLayer", 2),
        ("NodeTopologyLayer", 2))), runs(2, 6), only(s0l0=1, s0l0h1=4, s0l0h2=4, s0l1=1, s0l2=1)),
]  # fmt: skip

GROUPS = [
    Landing("Volcano: each partition in a leaf", parted([3, 3]), both(runs(3), by_leaf(3, 3)),
        only(s0l0=4, s0l1=2, s1l0=3, s1l1=3), [policy(6)], scored=True),
    Landing("Volcano: each partition under a spine", parted([3, 3]), both(runs(3, 2), by_leaf(2, 2, 1, 1)),
        only(s0l0=2, s0l1=2, s1l0=2, s1l1=1), [policy(6, tier=2)]),
    Landing("Volcano: unequal partitions", parted([3, 2, 2, 1]), lambda placement: all(
        len({placement[f"g-{at}"][:4] for at in part}) == 1 for part in ((0, 1, 2), (3, 4), (5, 6))),
        only(s0l0=4, s0l1=4), [policy(8)]),
    Landing("Volcano: two of three groups, none halved", parted([2, 2, 2]), by_leaf(2, 2),
        only(s0l0=2, s0l1=2, s0l2=1, s1l0=1), [policy(4, minSubGroups=2)]),
    Landing("Volcano: groups by their size", volcano(6), both(runs(3), by_leaf(3, 3)),
        only(s0l0=4, s0l1=2, s1l0=3, s1l1=3), [group(minMember=6, subGroupPolicy=[{"name": "w", "subGroupSize": 3,
            "networkTopology": {"mode": "hard", "highestTierAllowed": 1}}])]),
    Landing("Volcano: as many of each task as must start", roles(ps=2, worker=4),
        lambda placement: Counter(name.split("-")[1] for name in placement) == {"ps": 1, "worker": 3}, only(s0l0=4),
        [group(minMember=4, minTaskMember={"ps": 1, "worker": 3})]),
    Landing("KAI: each subgroup in a rack", subgrouped(a=3, b=3), both(by_leaf(3, 3), in_racks("a", "b")),
        only(s0l0=4, s0l1=2, s1l0=3, s1l1=3), [kai_group(subGroups=[subgroup("a", 3, RACK), subgroup("b", 3, RACK)])],
        Dialect.KAI, scored=True),
    Landing("KAI: subgroups of one parent in a rack", subgrouped(a=2, b=2, c=1),
        lambda placement: len(placement) == 5
        and len({placement[f"g-{name}-{at}"][:4] for name in "ab" for at in (0, 1)}) == 1,
        only(s0l0=3, s0l1=2, s1l0=4, s1l1=1), [kai_group(subGroups=[subgroup("both", level=RACK),
            subgroup("a", 2, parent="both"), subgroup("b", 2, parent="both"), subgroup("c", 1)])], Dialect.KAI),
    Landing("KAI: as many of each subgroup as must start", subgrouped(a=2, b=4),
        lambda placement: Counter(name.split("-")[1] for name in placement) == {"a": 1, "b": 3}, only(s0l0=4),
        [kai_group(subGroups=[subgroup("a", 1), subgroup("b", 3)])], Dialect.KAI),
    Landing("KAI: two of three subgroups, none halved", subgrouped(a=2, b=2, c=2), by_leaf(2, 2),
        only(s0l0=2, s0l1=2, s0l2=1, s1l0=1), [kai_group(minSubGroup=2, subGroups=[
            subgroup(name, 2, RACK) for name in "abc"])], Dialect.KAI),
    Landing("KAI: two of three subgroups of two shapes", [pod(f"g-{name}-{at}", gpus, {labels.KAI_GROUP: "g"},
        {kai.SUBGROUP: name}) for name in "abc" for at, gpus in enumerate((8, 4))],
        lambda placement: set(placement) == {f"g-{name}-{at}" for name in "ab" for at in (0, 1)}, only(s0l0=2, s0l1=2),
        [kai_group(minSubGroup=2, subGroups=[subgroup(name, 2, RACK) for name in "abc"])], Dialect.KAI),
    Landing("KAI: of a subgroup as many as its rack holds", subgrouped(a=4), by_leaf(3), only(s0l0=3, s0l1=1),
        [kai_group(subGroups=[subgroup("a", 2, RACK)])], Dialect.KAI),
    Landing("KAI: ten segments and more, in the order of numbers", subgrouped(**{f"w-{at}": 1 for at in range(12)}),
        lambda placement: [*placement.values()] == sorted(placement.values()), {}, [kai_group(subGroups=[
            subgroup(f"w-{at}", 1) for at in range(12)])], Dialect.KAI, misread=volcano(12)[::-1]),
    Landing("LWS: no two subgroups in one rack", subgroups(4, 2), by_leaf(2, 2), only(s0l0=4, s1l0=2)),
    Landing("LWS: each group a gang", lws(2, 2), apart(4), only(s0l0=3, s0l1=2), misread=koord(4)),
    Landing("Kubernetes: a gang of its own", native(4), one_leaf, only(s0l0=2, s0l1=3, s1l0=4), [pod_group(4)],
        Dialect.NATIVE),
]  # fmt: skip

SERVING = {labels.APART: RACK, labels.APART_SET: "serving"}
SHARES = [
    Landing("balanced: three and three", job(6, notes={labels.BALANCED: "true"}), by_leaf(3, 3), only(s0l0=4, s0l1=3),
        scored=True),
    Landing("balanced: in multiples a host", job(8, 4, {labels.BALANCED: "true", labels.PODS_PER_HOST_MULTIPLE: "2"}),
        by_leaf(4, 4), only(s0l0=3, s0l1=2)),
    Landing("balanced beside preferred", job(6, notes=ours("preferred", balanced="true")), by_leaf(3, 3),
        only(s1l0=4, s1l1=3)),
    Landing("mesh: experts under a leaf", job(4, notes={labels.MESH: "dp=2,ep=2,tp=8"}), both(runs(2), by_leaf(2, 2)),
        only(s0l0=3, s0l1=2), scored=True),
    Landing("mesh: tensor groups in a host", job(8, 1, {labels.MESH: "dp=2,tp=4"}), runs(4, 6),
        only(s0l0h0=6, s0l0h1=4)),
    Landing("mesh: gradients under a leaf each", job(6, notes={labels.MESH: "pp=2,dp=3,tp=8"}),
        both(runs(3), by_leaf(3, 3)), only(s0l0=4, s0l1=3)),
    Landing("ours: gangs of a set apart", [*job(2, notes=SERVING, name="a"), *job(2, notes=SERVING, name="b")],
        apart(4), only(s0l0=4, s0l1=4), scored=True),
    Landing("JobSet: a rack for each job", jobset(3, 2, {sets.JOBSET: RACK}), apart(4), {}),
    Landing("JobSet: a block for each job", jobset(2, 4, {sets.JOBSET: BLOCK}), apart(2), {}),
    Landing("LWS: a rack for each group", lws(3, 2, {sets.LWS: RACK}), apart(4), {}),
]  # fmt: skip


def named(name, size, notes, gpus=8):
    """Pods of a koordinator gang of this name."""
    own = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(size), **notes}
    return [pod(f"{name}-{at}", gpus, own) for at in range(size)]


def starts(*names):
    return lambda placement: {name.split("-")[0] for name in placement} == set(names)


TOGETHER = {labels.TOGETHER: "training"}
LISTED = {koordinator.GROUPS: json.dumps(["default/a", "default/b"])}
PODSETS = {kueue.GROUP: "training"}
ALL_OR_NONE = [
    Landing(f"{owner}: the third starts, since not both do", [*named("a", 2, notes), *named("b", 2, notes),
        *named("c", 3, {})], starts("c"), only(s0l0=3))
    for owner, notes in (("ours", TOGETHER), ("koordinator's groups", LISTED), ("Kueue's podset group", PODSETS))
]  # fmt: skip

FOUR = [f"g-{at}" for at in range(4)]
LEADER = pod("g-0", 0, {labels.VOLCANO_GROUP: "g"}, {labels.VOLCANO_TASK_INDEX: "0"})
NARROW = {f"s{s}l{leaf}h{at}": 8 for s in (0, 1) for leaf in range(3) for at in (2, 3) if (s, leaf) != (1, 2)}
RANKS = [
    Landing("Volcano: ranks by the index of a task", [pod(f"g-{at}", 8, {labels.VOLCANO_GROUP: "g"},
        {labels.VOLCANO_TASK_INDEX: str(7 - at)}) for at in range(8)], upwards(7, 6, 5, 4, 3, 2, 1, 0), {},
        misread=volcano(8)),
    Landing("koordinator: ranks by its index", [pod(f"g-{at}", 8, {labels.KOORD_NAME: "g", labels.KOORD_MIN: "4",
        koordinator.INDEX: str(3 - at)}) for at in range(4)],
        upwards(3, 2, 1, 0), {}),
    Landing("Volcano: a leader without GPUs", [LEADER, *volcano(4)[1:]], under("s1l2", *FOUR), NARROW,
        [topology(mode="hard", highestTierAllowed=1)]),
    Landing("Kueue: a leader without GPUs, the wish on its workers", [LEADER, *volcano(4, notes={kueue.REQUIRED:
        RACK})[1:]], under("s1l2", *FOUR), NARROW, [group(minMember=4)]),
    Landing("LWS: a leader without GPUs, its workers exclusive", [*lws(1, 4, gpus=0)[:1],
        *lws(1, 4, {sets.LWS: RACK})[1:]], under("s1l2", "s-0-0", "s-0-1"), NARROW),
]  # fmt: skip

TABLE = [*A_RACK, *A_BLOCK, *A_NODE, *PREFERRED, *RUNS, *GROUPS, *SHARES, *ALL_OR_NONE, *RANKS]
SCORED = [row for row in TABLE if row.scored]


def played(row, pods, groups, verb=Verb.FILTER):
    """Return where the pods are once everybody was asked, and again after some have left."""
    stage = Stage(row.taken)
    for each in groups:
        stage.group(each, row.dialect)
    node_by_pod = dict(stage.schedule(pods, verb))
    if node_by_pod or not row.freed:
        return node_by_pod
    for name in row.freed:
        stage.leave(name)
    return dict(stage.schedule(pods, verb))


def bare(raw_pod):
    """A pod that says nothing of where it wants to be."""
    raw_pod = deepcopy(raw_pod)
    raw_pod["metadata"]["annotations"] = {
        key: value for key, value in raw_pod["metadata"]["annotations"].items() if key in _OF_GANGS
    }
    raw_pod["spec"].pop("schedulingGroup", None)
    return raw_pod


def without_words(raw_pod):
    """A PodGroup that says how many start, and nothing else."""
    raw_pod = deepcopy(raw_pod)
    raw_pod["metadata"].pop("annotations", None)
    return {**raw_pod, "spec": {key: value for key, value in raw_pod["spec"].items() if key in _MINIMUM}}


def params(rows):
    return [pytest.param(row, id=row.name) for row in rows]


@pytest.mark.parametrize("row", params(TABLE))
def test_pods_land_as_their_wish_says(row):
    placement = played(row, row.pods, row.groups)
    assert placement, "nobody was placed"
    assert row.lands(placement), placement


@pytest.mark.parametrize("row", params(SCORED))
def test_scores_alone_lead_there_too(row):
    placement = played(row, row.pods, row.groups, Verb.PRIORITIZE)
    assert len(placement) == len(row.pods)
    assert row.lands(placement), placement


@pytest.mark.parametrize("row", params(TABLE))
def test_without_the_wish_or_with_it_misread_they_are_elsewhere(row):
    pods = row.misread or [bare(each) for each in row.pods]
    groups = row.groups if row.misread else [without_words(each) for each in row.groups]
    placement = played(row, pods, groups)
    assert not (placement and row.lands(placement)), placement


def test_the_table_has_sixty_wishes():
    assert len({row.name for row in TABLE}) >= 60
