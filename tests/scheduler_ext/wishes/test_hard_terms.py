"""A hard level holds beside every other wish of the gang, in every dialect. The wish that is lost is reported."""

import pytest

from tests.scheduler_ext.wishes.stage import BLOCK, RACK, Stage, pod
from tests.scheduler_ext.wishes.test_layered_wishes import layers, only, policy
from tests.scheduler_ext.wishes.test_wishes import (
    group,
    job,
    kai_gang,
    kai_group,
    koord,
    ours,
    pod_group,
    volcano,
    within,
)
from turnout.jobs.gang import Dialect
from turnout.jobs.wishes import kai, koordinator, kueue, sets
from turnout.jobs.wishes import volcano as volcano_words
from turnout.kube import labels
from turnout.scheduler_ext.model import EventReason

TWO_LEAVES = only(s0l0=2, s0l1=2)


def native_gang(size, notes):
    """Pods that name a PodGroup of Kubernetes 1.37."""
    return [pod(f"g-{at}", 8, notes, schedulingGroup={"podGroupName": "g"}) for at in range(size)]


OWNERS = [
    pytest.param(lambda notes: volcano(3, notes=notes), group(minMember=3, networkTopology={"highestTierAllowed": 1}),
        "spec.networkTopology", id="Volcano"),
    pytest.param(lambda notes: kai_gang(3, notes=notes), kai_group(minMember=3, topologyConstraint=within(RACK)),
        "spec.topologyConstraint", id="KAI"),
    pytest.param(lambda notes: native_gang(3, notes), pod_group(3, RACK), "spec.schedulingConstraints.topology",
        id="Kubernetes"),
]  # fmt: skip
BESIDE = [
    pytest.param({labels.BALANCED: "true"}, "", id="balanced"),
    pytest.param({labels.MESH: "dp=3,tp=8"}, "", id="mesh"),
    pytest.param({labels.TOGETHER: "set"}, "", id="together"),
    pytest.param({labels.APART: "rack", labels.APART_SET: "set"}, "", id="apart"),
    pytest.param({kai.TREE: "tree"}, "kai.scheduler/topology is not kept", id="a tree of KAI"),
    pytest.param({labels.PODS_PER_HOST_MULTIPLE: "1"}, "", id="a multiple of one"),
    pytest.param(ours("preferred"), "turnout.dev/topology is not kept, because {}", id="preferred"),
    pytest.param(ours("unconstrained"), "turnout.dev/topology is not kept, because {}", id="unconstrained"),
    pytest.param(ours("none"), "turnout.dev/topology is not kept, because {}", id="none"),
    pytest.param({kueue.PREFERRED: RACK}, kueue.PREFERRED + " is not kept, because {}", id="preferred by Kueue's word"),
    pytest.param({volcano_words.MODE: "soft"}, volcano_words.MODE + " is not kept, because {}", id="soft by Volcano's"),
    pytest.param({kai.PREFERRED: RACK}, kai.PREFERRED + " is not kept, because {}", id="preferred by KAI's"),
    pytest.param({kueue.REQUIRED: BLOCK}, "", id="a wider level"),
    pytest.param({koordinator.SPEC: '{"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]}'}, "",
        id="a wider level in koordinator's words"),
]  # fmt: skip


def reasons_of(stage):
    return "".join(notice.detail for notice in stage.told if notice.reason is EventReason.WISH_NOT_KEPT)


def shown(busy, owner):
    stage = Stage(busy)
    stage.group(owner, Dialect(owner.get("apiVersion", Dialect.VOLCANO.value).split("/")[0]))
    return stage


@pytest.mark.parametrize(("pods_of", "owner", "source"), OWNERS)
@pytest.mark.parametrize(("notes", "sentence"), BESIDE)
def test_the_hard_level_of_a_podgroup_holds_beside_words_of_its_pods(pods_of, owner, source, notes, sentence):
    stage = shown(TWO_LEAVES, owner)
    assert stage.schedule(pods_of(notes)) == {}
    assert sentence.format(source) in reasons_of(stage)
    assert bool(sentence) == bool(reasons_of(stage))
    second_stage = shown(only(s0l0=2, s1l0=3), owner).schedule(pods_of(notes))
    assert {host[:4] for host in second_stage.values()} == {"s1l0"}


@pytest.mark.parametrize(("pods", "sentence"), [
    pytest.param(job(3, notes={**ours("preferred"), kueue.REQUIRED: RACK}),
        "turnout.dev/topology is not kept, because kueue.x-k8s.io/podset-required-topology", id="ours and Kueue's"),
    pytest.param(job(3, notes={kueue.PREFERRED: RACK, kai.REQUIRED: RACK}),
        "podset-preferred-topology is not kept, because kai.scheduler/topology-required", id="Kueue's and KAI's"),
    pytest.param(job(3, notes={kueue.REQUIRED: BLOCK, volcano_words.HIGHEST_TIER: "1"}), "", id="the narrower holds"),
    pytest.param(job(3, notes={**ours("required", topology_tier="2"), kueue.REQUIRED: RACK}), "", id="whichever it is"),
    pytest.param(koord(3, notes={**ours("preferred"), koordinator.SPEC:
        '{"gatherStrategy": [{"layer": "LeafLayer", "strategy": "MustGather"}]}'}),
        "turnout.dev/topology is not kept, because gang.scheduling.koordinator.sh/network-topology-spec",
        id="ours and koordinator's"),
])  # fmt: skip
def test_of_two_dialects_on_a_pod_the_strictest_level_holds(pods, sentence):
    stage = Stage(TWO_LEAVES)
    assert stage.schedule(pods) == {}
    assert sentence in reasons_of(stage)
    assert bool(sentence) == bool(reasons_of(stage))


@pytest.mark.parametrize(("notes", "sentence"), [
    pytest.param({sets.LWS_SUBGROUP: BLOCK}, f"the groups of {sets.LWS_SUBGROUP} are not kept", id="other groups"),
    pytest.param(ours("unconstrained"), "names a level", id="the smallest holes"),
])  # fmt: skip
def test_the_groups_of_a_podgroup_hold_beside_words_of_its_pods(notes, sentence):
    stage = shown(TWO_LEAVES, policy(3))
    pods = volcano(3, notes=notes)
    for at, each in enumerate(pods):
        own = {labels.VOLCANO_TASK_SPEC: "w", "volcano.sh/partition-id": "0", sets.LWS_SUBGROUP_INDEX: str(at)}
        each["metadata"]["labels"].update(own)
    assert stage.schedule(pods) == {}
    assert sentence in reasons_of(stage)


def test_slices_hold_beside_a_mesh():
    stage = Stage(only(s0l0=3, s0l1=3))
    pods = job(4, notes={labels.MESH: "dp=4,tp=8", **layers((RACK, 2))})
    node_by_pod = stage.schedule(pods)
    assert all(len({node_by_pod[f"g-{at}"][:4] for at in (first, first + 1)}) == 1 for first in (0, 2))
    assert "turnout.dev/mesh is not kept, because" in reasons_of(stage)
