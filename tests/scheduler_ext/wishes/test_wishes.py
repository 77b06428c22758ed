"""Wishes as users of other projects write them, each through the real handlers, and where the pods land.

docs/wishes.md tells the same to users. Where a wish leads its pods elsewhere than they would go without it stands in
test_landings.py; here is who waits, what is told, and what a wish leaves alone.
"""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.scheduler_ext.wishes.stage import BLOCK, HOSTS, RACK, Stage, pod
from turnout.jobs.gang import POD_GROUP_VERSIONS, Dialect
from turnout.jobs.wishes import kai, koordinator, kueue, sets
from turnout.kube import labels
from turnout.kube.objects import Pod
from turnout.scheduler_ext.model import EventReason

HOST = labels.HOSTNAME
# Of each leaf two hosts are full: no leaf holds three pods of 8 GPUs, a spine holds six.
HALVES = {name: 8 for name in HOSTS if name[-1] in "23"}
ONE_ELSEWHERE = ("s0l1h0", "s1l1h0", "s1l1h1")  # beside three hosts of the first leaf: nearest are 3+1
# One hole of 2 GPUs under one spine, one of 3 under the other; the other hosts of the first leaf are whole.
HOLES = {"s0l1h0": 6, "s1l2h3": 5}


def leaves(placement):
    return sorted(Counter(name[:4] for name in placement.values()).values(), reverse=True)


def spines(placement):
    return len({name[:2] for name in placement.values()})


def hosts(placement):
    return sorted(Counter(placement.values()).values(), reverse=True)


def volcano(size, gpus=8, notes=None, **more):
    """Pods of a Volcano Job, whose PodGroup is called g."""
    notes = {labels.VOLCANO_GROUP: "g", **(notes or {})}
    return [pod(f"g-{at}", gpus, notes, {labels.VOLCANO_TASK_INDEX: str(at)}, **more) for at in range(size)]


def koord(size, gpus=8, notes=None, **more):
    """Pods of a koordinator gang."""
    notes = {labels.KOORD_NAME: "g", labels.KOORD_MIN: str(size), **(notes or {})}
    return [pod(f"g-{at}", gpus, notes, **more) for at in range(size)]


def kai_gang(size, gpus=8, notes=None):
    """Pods that name a PodGroup of KAI called g."""
    return [pod(f"g-{at}", gpus, {labels.KAI_GROUP: "g", **(notes or {})}) for at in range(size)]


def job(size, gpus=8, notes=None, name="g", marks=None, **more):
    """Pods of an Indexed Job, as Kueue and JobSet run them."""
    marks = marks or {}
    return [
        pod(f"{name}-{at}", gpus, notes, {labels.JOB_INDEX: str(at), **marks}, owner=f"Job/{name}", **more)
        for at in range(size)
    ]


def lws(groups, size, notes=None, gpus=8):
    """Pods of a LeaderWorkerSet, leaders first in each group."""
    return [
        pod(f"s-{group}-{at}", gpus, {labels.LWS_SIZE: str(size), **(notes or {})},
            {labels.LWS_NAME: "s", labels.LWS_GROUP: str(group), labels.LWS_WORKER: str(at)},
            owner=f"StatefulSet/s-{group}")
        for group in range(groups) for at in range(size)
    ]  # fmt: skip


def jobset(jobs, size, notes, gpus=8):
    """Pods of the child Jobs of a JobSet."""
    marks = {labels.JOBSET_NAME: "js"}
    return [each for at in range(jobs) for each in job(size, gpus, notes, f"js-worker-{at}", marks)]


def group(**spec):
    """A PodGroup of Volcano called g."""
    meta = {"name": "g", "namespace": "default", "uid": "uid-g", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"kind": "PodGroup", "metadata": meta, "spec": spec}


def topology(**words):
    """A Volcano PodGroup of four with a networkTopology."""
    return group(minMember=4, networkTopology=words)


def native(size):
    """Pods that name a PodGroup of Kubernetes 1.37."""
    return [pod(f"g-{at}", schedulingGroup={"podGroupName": "g"}) for at in range(size)]


def pod_group(minimum, key=None):
    """A PodGroup of Kubernetes 1.37, constrained by the key of a node label."""
    constraints = {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
    raw_group = group(schedulingPolicy={"gang": {"minCount": minimum}}, **constraints)
    return {**raw_group, "apiVersion": "scheduling.k8s.io/v1beta1"}


def kai_group(**spec):
    """A PodGroup of KAI called g."""
    return {**group(**spec), "apiVersion": POD_GROUP_VERSIONS[Dialect.KAI]}


def within(required="", preferred="", tree=""):
    """A topologyConstraint of KAI."""
    constraint = {"requiredTopologyLevel": required, "preferredTopologyLevel": preferred, "topology": tree}
    return {key: value for key, value in constraint.items() if value}


def ours(word, **more):
    return {labels.TOPOLOGY: word, **{f"turnout.dev/{key.replace('_', '-')}": value for key, value in more.items()}}


def gather(*rules):
    text_of_wish = ", ".join(
        "{" + ", ".join(f'"{key}": {value if isinstance(value, int) else chr(34) + value + chr(34)}'
                        for key, value in rule.items()) + "}" for rule in rules
    )  # fmt: skip
    return {koordinator.SPEC: f'{{"gatherStrategy": [{text_of_wish}]}}'}


LANDS = {
    "one leaf": lambda placement, size: len(placement) == size and len(leaves(placement)) == 1,
    "one spine": lambda placement, size: (
        len(placement) == size and spines(placement) == 1 and len(leaves(placement)) > 1
    ),
    "anywhere": lambda placement, size: len(placement) == size,
    "one host": lambda placement, size: len(placement) == size and len(hosts(placement)) == 1,
    "waits": lambda placement, size: not placement,
    "the holes": lambda placement, size: set(placement.values()) == set(HOLES),
    "in ring order": lambda placement, size: (
        [*placement] == sorted(placement, key=placement.get) and len(placement) == size
    ),
}


def row(identity, pods, lands, busy=(), groups=(), sentence="", bad=""):
    """One wish. lands: a word of LANDS, or "leaves 4+4", "hosts 4+2", "leaves apart". told, bad: what owners read."""
    return pytest.param(pods, lands, busy, groups, sentence, bad, id=identity)


OURS = [
    row("ours: nothing said, the nearest", volcano(4), "one leaf"),
    row("ours: required means a leaf", volcano(4, notes=ours("required")), "waits", HALVES),
    row("ours: tier 0 and too many for a host", volcano(5, 2, ours("required", topology_tier="0")), "waits"),
    row("ours: a word for a tier", volcano(4, notes=ours("required", topology_tier="rack")), "waits", HALVES),
    row("ours: a level that is not there", volcano(4, notes=ours("required", topology_tier="example.com/x")),
        "one leaf", sentence="names 'example.com/x', which is no level here"),
    row("ours: none, left to the scheduler", volcano(4, notes=ours("none")), "no opinion"),
    row("ours: a tier beside preferred", volcano(4, notes=ours("preferred", topology_tier="2")), "one leaf",
        sentence="topology-tier has no meaning with turnout.dev/topology: preferred"),
    row("ours: a word nearly ours", volcano(4, notes={"turnout.dev/min-worker": "2"}), "one leaf",
        bad="turnout.dev/min-worker is not read: did you mean turnout.dev/min-workers?"),
    row("ours: a pod of no gang", [pod("ray-worker-x", 8, ours("required"))], "anywhere",
        sentence="the pod belongs to no gang"),
    row("ours beside Kueue's: the required level", job(4, notes={**ours("preferred"), kueue.REQUIRED: RACK}), "waits",
        HALVES, sentence="turnout.dev/topology is not kept, because kueue.x-k8s.io/podset-required-topology"),
]  # fmt: skip

KUEUE = [
    row("Kueue: required rack, none has room", job(4, notes={kueue.REQUIRED: RACK}), "waits", HALVES),
    row("Kueue: slices that fit no rack", job(6, notes={kueue.REQUIRED: BLOCK, kueue.SLICE_LEVEL: RACK,
        kueue.SLICE_SIZE: "3"}), "waits", HALVES),
    row("Kueue: slices without a size", job(4, notes={kueue.SLICE_LEVEL: RACK}), "one leaf",
        sentence="has no meaning without"),
    row("Kueue: layers that cannot be read", job(4, notes={kueue.LAYERS: "rack"}), "one leaf", bad="cannot be read"),
    row("Kueue: a level that no node has", job(4, notes={kueue.REQUIRED: "example.com/island"}), "one leaf",
        sentence="which is no level here"),
]  # fmt: skip

VOLCANO = [
    row("Volcano: hard, tier 1, no room", volcano(4), "waits", HALVES, [topology(mode="hard", highestTierAllowed=1)]),
    row("Volcano: hard is the default mode", volcano(4), "waits", HALVES, [topology(highestTierAllowed=1)]),
    row("Volcano: subgroups by expressions", volcano(4), "one leaf", groups=[group(minMember=4, subGroupPolicy=[
        {"name": "x", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}])],
        sentence="selects by matchExpressions"),
]  # fmt: skip

KOORDINATOR = [
    row("koordinator: must gather, leaf", koord(4, notes=gather({"layer": "LeafLayer", "strategy": "MustGather"})),
        "waits", HALVES),
    row("koordinator: the narrowest of two layers", koord(4, notes=gather(
        {"layer": "SpineLayer", "strategy": "MustGather"}, {"layer": "LeafLayer", "strategy": "MustGather"})), "waits",
        HALVES),
    row("koordinator: the whole cluster", koord(8, notes=gather(
        {"layer": "ClusterTopologyLayer", "strategy": "MustGather"})), "anywhere", HALVES),
    row("koordinator: a spec that cannot be read", koord(4, notes={koordinator.SPEC: "gather"}), "one leaf",
        bad="network-topology-spec cannot be read"),
]  # fmt: skip

SETS = [
    row("JobSet: more jobs than blocks", jobset(3, 1, {sets.JOBSET: BLOCK}), "hosts 1+1"),
    row("JobSet: without the word jobs share a rack", jobset(2, 2, {}), "one leaf"),
]

NATIVE = [
    row("Kubernetes: constrained to a rack", native(4), "waits", HALVES, [pod_group(4, RACK)]),
    row("Kubernetes: fewer pods than must start", native(2), "anywhere", groups=[pod_group(4)]),
]

OTHERS = [
    row("KAI: required rack", volcano(4, notes={kai.REQUIRED: RACK}), "waits", HALVES),
    row("KAI: required rack, on the PodGroup", kai_gang(4), "waits", HALVES,
        [kai_group(minMember=4, topologyConstraint=within(RACK))]),
    row("KAI: preferred rack, on the PodGroup", kai_gang(4), "one spine", HALVES,
        [kai_group(minMember=4, topologyConstraint=within(preferred=RACK))]),
    row("KAI: required comes before preferred", kai_gang(4), "one spine", HALVES,
        [kai_group(minMember=4, topologyConstraint=within(BLOCK, RACK))]),
    row("KAI: a tree of its own is told", kai_gang(4), "waits", HALVES,
        [kai_group(minMember=4, topologyConstraint=within(RACK, tree="default"))],
        sentence="topologyConstraint.topology is not kept: the tree is that of our own map"),
    row("KAI: a level that no node has", kai_gang(4), "one leaf", groups=[kai_group(minMember=4,
        topologyConstraint=within("example.com/island"))],
        sentence="names 'example.com/island', which is no level here"),
    row("KAI: a level that is no key", kai_gang(4), "one leaf", groups=[kai_group(minMember=4,
        topologyConstraint=within("a rack"))], sentence="requiredTopologyLevel is 'a rack'"),
    row("KAI: fewer pods than must start, as of others", kai_gang(2), "anywhere", groups=[kai_group(minMember=4)]),
    row("KAI: without a minimum each pod starts by itself", kai_gang(4), "leaves 2", dict.fromkeys(HOSTS[2:], 8),
        [kai_group(queue="train")]),
    row("KAI: the level of the PodGroup before pods' preference", kai_gang(4, notes=ours("preferred")), "waits", HALVES,
        [kai_group(minMember=4, topologyConstraint=within(RACK))],
        sentence="turnout.dev/topology is not kept, because spec.topologyConstraint"),
    row("DRA: devices of claims alone", volcano(2, 0, ours("required"), resourceClaims=[{"name": "gpu"}]), "no opinion",
        sentence="its devices come from resource claims alone"),
    row("DRA: a ComputeDomain's channel", volcano(4, notes=ours("required"), resourceClaims=[{"name": "channel"}]),
        "one leaf"),
]  # fmt: skip

EVERY_ROW = [*OURS, *KUEUE, *VOLCANO, *KOORDINATOR, *SETS, *NATIVE, *OTHERS]


def landed(lands, stage, size):
    """True if the pods lie as one word of the table says."""
    node_by_pod = stage.placed
    what, _, counts = lands.partition(" ")
    if lands == "no opinion":
        return not node_by_pod and all(count > 1 for count in stage.refused.values())
    if "apart" in lands:
        by_job = Counter(
            (name.rsplit("-", 1)[0], host[: 4 if what == "leaves" else 2]) for name, host in node_by_pod.items()
        )
        domains = [domain for _, domain in by_job]
        return (
            len(node_by_pod) == size and len(domains) == len(set(domains)) and set(by_job.values()) == {int(lands[-1])}
        )
    if counts[:1].isdigit():
        found = leaves(node_by_pod) if what == "leaves" else hosts(node_by_pod)
        return found == [int(each) for each in counts.split("+")]
    return LANDS[lands](node_by_pod, size)


@pytest.mark.parametrize(("pods", "lands", "busy", "groups", "sentence", "bad"), EVERY_ROW)
def test_a_wish_in_its_users_words(pods, lands, busy, groups, sentence, bad):
    stage = Stage(busy)
    for each in groups:
        stage.group(each, Dialect(each.get("apiVersion", Dialect.VOLCANO.value).split("/")[0]))
    stage.schedule(pods)
    assert landed(lands, stage, len(pods)), stage.placed
    words = {EventReason.WISH_NOT_KEPT: sentence, EventReason.BAD_ANNOTATION: bad}
    for reason, text in words.items():
        details = {notice.detail for notice in stage.told if notice.reason is reason}
        assert (len(details) == 1 and text in details.pop()) if text else not details


def test_what_is_not_kept_is_told_once_a_gang():
    stage = Stage()
    stage.schedule(volcano(4, notes=ours("preferred", topology_tier="2")))
    assert [notice.reason for notice in stage.told] == [EventReason.WISH_NOT_KEPT]


def test_members_with_different_unkept_wishes_are_told_once_each():
    stage, pods = Stage(), job(2, notes=ours("required", topology_tier="nonsense"))
    pods[1]["spec"]["resourceClaims"] = [{"name": "gpu"}]
    pods[1]["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    for each in pods:
        stage.view.put_pod(msgspec.convert(each, Pod))
    for _ in range(5):
        for each in pods:
            stage.clock.now_s += 1.0
            stage.ask(each)
    assert [notice.reason for notice in stage.told] == [EventReason.WISH_NOT_KEPT] * 2
    assert "turnout.dev/topology-tier names 'nonsense', which is no level here" in stage.told[0].detail


def test_slices_are_runs_of_neighbouring_ranks():
    stage = Stage({"s0l0h0": 8})
    node_by_pod = stage.schedule(job(8, notes={kueue.SLICE_LEVEL: RACK, kueue.SLICE_SIZE: "4"}))
    runs = [node_by_pod[f"g-{at}"][:4] for at in range(8)]
    assert sum(one != other for one, other in pairwise(runs)) == 1


def test_the_page_for_users_names_each_word_that_is_read():
    page = (Path(__file__).parents[3] / "docs" / "wishes.md").read_text()
    words = [labels.TOPOLOGY, labels.TOPOLOGY_TIER, labels.PODS_PER_HOST_MULTIPLE, kueue.REQUIRED, kueue.PREFERRED,
             kueue.UNCONSTRAINED, kueue.SLICE_LEVEL, kueue.SLICE_SIZE, kueue.LAYERS, koordinator.SPEC,
             koordinator.INDEX, sets.JOBSET, sets.LWS, sets.LWS_SUBGROUP, kai.REQUIRED, kai.PREFERRED,
             labels.KAI_GROUP, kai.SUBGROUP, kai.TREE, "topologyConstraint", "subGroups", "minSubGroup",
             "networkTopology", "subGroupPolicy", "highestTierAllowed", "highestTierName"]  # fmt: skip
    assert [word for word in words if not re.search(rf"`{re.escape(word)}[`:]", page)] == []
