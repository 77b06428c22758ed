"""Whatever stands in a word that the extender or the nominator reads raises nothing, and harms nobody else."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import cluster, world
from tests.kit.hypothesis_examples import scaled
from tests.kit.world import World
from turnout.jobs.gang import Dialect
from turnout.jobs.wishes import kai
from turnout.kube import labels
from turnout.kube.objects import Owner, Pod, PodGroup
from turnout.scheduler_ext.cluster.ignored_wishes import ignored_terms
from turnout.scheduler_ext.model import Rules, Victims
from turnout.scheduler_ext.planner.answers import answer_preempt, broken_rules, partial_gangs
from turnout.scheduler_ext.planner.nominations import NominationChoices, nominate, plan_annotations
from turnout.topology.switch_paths import BadPath, natural_key, read_path

OTHERS = (labels.KAI_GROUP, kai.SUBGROUP)
WORDS = sorted({*(word for word in vars(labels).values() if isinstance(word, str) and "/" in word), *OTHERS})
CHOICES = NominationChoices(Rules(), frozenset({"default-scheduler"}))
DEEP = "[" * 10_000
NASTY = st.sampled_from([
    "", " ", "0", "-1", "+1", "1", "2", "07", "1_0", "1.5", "1e9", "0x10", "999999", "1000000", "9" * 20, "9" * 5_000,
    "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}", "\N{FULLWIDTH DIGIT TWO}", "NaN", "inf", "-Infinity",
    "true", "None", "null", "required", "preferred", "master", "worker", "\0", "\n", "1\n", "a/b", "../..", "%", "%00",
    "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{PILE OF POO}", DEEP, "{" * 10_000, '{"a":' * 5_000, "x" * 100_000,
])  # fmt: skip
TEXTS = NASTY | st.text(max_size=12) | st.integers().map(str) | st.floats().map(str)
QUANTITIES = TEXTS | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
OWNERS = st.sampled_from([[], [{"kind": "Job", "name": "job", "uid": "u", "controller": True}]])
MANAGED = st.sampled_from([
    {}, [], 5, "f:status", None, "f:nominatedNodeName", {"f:status": "f:nominatedNodeName"}, {"f:status": 5},
    {"f:status": 5, "f:nominatedNodeName": 5}, {"f:status": ["f:nominatedNodeName"]},
    {"f:status": {"f:nominatedNodeName": {}}},
]).map(json.dumps) | st.just('{"f:nominatedNodeName":' + "[" * 300 + "]" * 300 + "}")  # fmt: skip


@st.composite
def odd_pods(draw, number=0):
    """A pod of a tenant who writes what he likes where the API server lets him."""
    one_pod = cluster.make_pod(f"odd-{number}", draw(st.integers(0, 9)), namespace="tenant")
    words = st.lists(st.sampled_from(WORDS), max_size=8, unique=True)
    one_pod["metadata"] |= {
        "uid": f"uid-odd-{number}",
        "annotations": {word: draw(TEXTS) for word in draw(words)},
        "labels": {word: draw(TEXTS) for word in draw(words)},
        "ownerReferences": draw(OWNERS),
        "creationTimestamp": draw(TEXTS),
        "resourceVersion": draw(TEXTS),
        "managedFields": [{"manager": "turnout-nominator", "fieldsV1": msgspec.Raw(draw(MANAGED).encode())}],
    }
    container = one_pod["spec"]["containers"][0]
    container["resources"]["requests"] |= {draw(st.sampled_from(["cpu", "memory", "a.b/c"])): draw(QUANTITIES)}
    container["env"] = [{"name": name, "value": draw(TEXTS)} for name in ("PET_NNODES", "WORLD_SIZE")]
    one_pod["spec"] |= {
        "priority": draw(st.integers(-(2**31), 2**31 - 1)),
        "nodeName": draw(st.sampled_from(["", "a0"])),
    }
    one_pod["status"] = {"phase": "Pending", "nominatedNodeName": draw(st.sampled_from(["", "a1"]) | TEXTS)}
    return msgspec.json.decode(msgspec.json.encode(one_pod), type=Pod)


def ask_everything(w, pods):
    """Every question that a scheduler, the nominator and the tidying ask of these pods."""
    names = w.names
    for pod in pods:
        member = w.view.pods.get(pod.metadata.uid)
        if member is None:
            continue
        if not member.node:
            w.fit(pod, names)
            w.rank(pod)
        answer_preempt(w.plans, member, {name: Victims(("v",)) for name in names}, w.now_s)
    w.plans.plan_some(w.now_s)
    partial_gangs(w.plans)
    broken_rules(w.plans, w.rules)
    nominate(w.plans, list(w.view.gangs), CHOICES, {}, w.now_s)
    plan_annotations(w.view, {}, list(w.view.pods), w.now_s)


@settings(max_examples=scaled(200), deadline=None)
@given(st.data(), st.booleans())
def test_no_text_of_a_pod_raises_or_takes_a_host_from_others(data, hold):
    w = World(4, 4, 4, rules=Rules(hold_incomplete=hold))
    odd = [data.draw(odd_pods(number)) for number in range(data.draw(st.integers(1, 3)))]
    honest = world.volcano("honest", 4, priority=5)
    w.put(*odd).put_group("honest", 4).put(*honest)
    ask_everything(w, odd)
    assert len(w.schedule(*honest)) == 4


NUMBERS = st.integers(-(2**70), 2**70) | st.none()


@settings(max_examples=scaled(100), deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS, TEXTS)
def test_no_size_of_a_group_or_an_owner_raises(minimum, one, other, stamp):
    w = World(2, 2)
    meta = {"name": "bert", "namespace": "default", "uid": "u", "creationTimestamp": stamp}
    pods = [*world.volcano("bert", 2), world.pod("job-0", 8, marks={labels.JOB_INDEX: "0"}, owner="Job/bert")]
    for kind, spec, put in (
        (PodGroup, {"minMember": minimum}, lambda group: w.view.groups.put_group(Dialect.VOLCANO, group)),
        (Owner, {"completions": one, "parallelism": other}, lambda group: w.view.groups.put_owner("Job", group)),
        (Owner, {"replicas": one}, lambda group: w.view.groups.put_owner("StatefulSet", group)),
    ):
        try:
            group = msgspec.json.decode(json.dumps({"metadata": meta, "spec": spec}), type=kind)
        except msgspec.MsgspecError:
            continue  # a number past 64 bits is no object to the watch either, which skips it
        put(group)
    w.put(*pods)
    ask_everything(w, pods)


NAMES = st.sampled_from(["a", "b", "c", "A", "", "x y", "9" * 300])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
LEVELS = st.sampled_from(["rack", "0", "cloud.provider.com/topology-rack", "kubernetes.io/hostname", "a b", ""])
PLACES = ANYTHING | st.fixed_dictionaries({}, optional={
    "topology": NAMES, "requiredTopologyLevel": LEVELS | ANYTHING, "preferredTopologyLevel": LEVELS | ANYTHING,
})  # fmt: skip
COUNTS = st.integers(-1, 4) | ANYTHING
SUBGROUPS = ANYTHING | st.fixed_dictionaries({}, optional={
    "name": NAMES, "parent": NAMES, "minMember": COUNTS, "minSubGroup": COUNTS, "topologyConstraint": PLACES,
})  # fmt: skip


@settings(max_examples=scaled(200), deadline=None)
@given(st.data())
def test_no_podgroup_of_kai_raises_or_takes_a_host_from_others(data):
    w = World(4, 4, 4)
    meta = {"name": "odd", "namespace": "tenant", "uid": "u"}
    spec = {"minMember": data.draw(st.integers(-1, 9) | st.none()), "minSubGroup": data.draw(COUNTS)}
    spec |= {
        "subGroups": data.draw(ANYTHING | st.lists(SUBGROUPS, max_size=5)),
        "topologyConstraint": data.draw(PLACES),
    }
    group = msgspec.json.decode(json.dumps({"metadata": meta, "spec": spec}), type=PodGroup)
    odd = [
        world.pod(f"odd-{at}", data.draw(st.integers(0, 8)), namespace="tenant", notes={labels.KAI_GROUP: "odd"},
                  marks={kai.SUBGROUP: data.draw(NAMES)})
        for at in range(data.draw(st.integers(1, 4)))
    ]  # fmt: skip
    honest = world.volcano("honest", 4, priority=5)
    w.put(*odd).put_group("honest", 4).put(*honest)
    w.view.groups.put_group(Dialect.KAI, group)
    ask_everything(w, odd)
    assert all(len(ignored_terms(each)) < 99 for each in w.view.gangs.values())
    assert len(w.schedule(*honest)) == 4


def test_subgroups_without_end_cost_a_moment():
    deep = [{"name": f"s{at}", "parent": f"s{at + 1}", "minMember": 2**40} for at in range(20_000)]
    group = kai.read_pod_group(None, 1, deep, {"topology": "x" * 100_000, "requiredTopologyLevel": "x" * 100_000})
    assert len(group.wish.ignored) < 10
    assert all(len(each) < 300 for each in group.wish.ignored)


@settings(max_examples=scaled(200), deadline=None)
@given(TEXTS)
def test_no_path_of_switches_raises_anything_but_that_it_is_none(text):
    try:
        path = read_path(text)
    except BadPath:
        return
    for name in path:
        natural_key(name)


@pytest.mark.parametrize("text", ["9" * 5_000, "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}"])
def test_names_with_numbers_that_no_machine_counts_to_have_an_order(text):
    assert natural_key(text) == natural_key(text)
    assert natural_key("gpu9") < natural_key("gpu10") < natural_key("gpu" + "9" * 5_000)
