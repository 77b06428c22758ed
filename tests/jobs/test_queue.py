"""Queues in their dialects, and what each may have: docs/facts/autoscaling.md 6, docs/facts/schedulers.md 3.4."""

import pytest

from turnout.jobs.queues import kueue, namespace, volcano
from turnout.jobs.queues.accounting import room
from turnout.jobs.queues.model import Demand, QueueSpec, Sharing
from turnout.jobs.queues.registry import limits, shares
from turnout.kube import labels

GPU = "nvidia.com/gpu"
TOTAL = {GPU: 100}


def raw(name="q", notes=None, marks=None, **spec):
    return {
        "metadata": {"name": name, "namespace": "team", "annotations": notes or {}, "labels": marks or {}},
        "spec": spec,
    }


def counts(amounts):
    return {name: {GPU: count} for name, count in amounts.items()}


def demand(used=(), requests=(), total=100):
    return Demand(counts(dict(used)), counts(dict(requests)), {GPU: total})


def gpus(found, names=None):
    return {name: amounts.get(GPU) for name, amounts in found.items() if names is None or name in names}


def limited(found):
    return gpus({name: share.limit for name, share in found.items()})


def own(found):
    return gpus({name: share.deserved for name, share in found.items()})


def volcano_queue(name, capability=None, guarantee=None, parent="", deserved=None, weight=1, **more):
    spec = {"capability": capability, "guarantee": guarantee, "deserved": deserved}
    sizes = {key: {GPU: amount} for key, amount in spec.items() if amount is not None}
    return QueueSpec(name, parent=parent, sharing=Sharing(weight), **sizes, **more)


@pytest.mark.contract("VE-01")
def test_a_volcano_queue_is_read():
    raw_queue = raw(
        capability={GPU: "8", "cpu": "96"}, guarantee={"resource": {GPU: 2}}, deserved={GPU: "4"}, parent="root"
    )
    queue = volcano.read(raw_queue)
    assert (queue.capability[GPU], queue.capability["cpu"]) == (8, 96_000)
    assert (queue.guarantee, queue.deserved, queue.parent, queue.open) == ({GPU: 2}, {GPU: 4}, "root", True)
    assert (queue.sharing.weight, volcano.read(raw(weight=5)).sharing.weight) == (1, 5)


@pytest.mark.parametrize(
    ("state", "is_open"), [("Open", True), ("", True), *((s, False) for s in ("Closed", "Closing", "Unknown"))]
)
def test_a_volcano_queue_takes_something_only_while_it_is_open(state, is_open):
    assert volcano.read({**raw(), "status": {"state": state}}).open is is_open


def test_a_queue_below_a_closed_one_is_closed():
    found = volcano.shares([volcano_queue("p", open=False), volcano_queue("a", parent="p")], demand())
    assert not found["a"].open


def test_an_unreadable_amount_is_told_and_its_queue_is_left_unchanged():
    queue = volcano.read(raw(capability={GPU: "lots"}))
    assert queue.capability == {}
    assert queue.faults == ("spec.capability.nvidia.com/gpu is 'lots': it is no Kubernetes quantity",)
    assert shares([queue], demand())["q"].faults == queue.faults


def test_what_cannot_be_read_of_a_parent_is_a_fault_of_all_below_it():
    parent, other = volcano.read(raw("p", capability={GPU: []})), volcano_queue("b")
    found = shares([parent, volcano_queue("a", parent="p"), volcano_queue("a1", parent="a"), other], demand())
    assert [name for name, share in sorted(found.items()) if share.faults] == ["a", "a1", "p"]
    assert found["a1"].faults == (f"p: {parent.faults[0]}",)


@pytest.mark.parametrize(
    ("notes", "headroom", "faults"),
    [
        pytest.param({}, {}, 0, id="nothing is said"),
        pytest.param({labels.HEADROOM: "2"}, {GPU: 2}, 0, id="of the GPUs that the queue names"),
        pytest.param({labels.HEADROOM: "some"}, {}, 1, id="not a number"),
        pytest.param({labels.HEADROOM: "-1"}, {}, 1, id="less than none"),
    ],
)
def test_an_owner_keeps_gpus_free_in_his_queue(notes, headroom, faults):
    queue = volcano.read(raw(notes=notes, capability={GPU: 8, "cpu": 9}))
    assert (queue.headroom, len(queue.faults)) == (headroom, faults)
    assert shares([queue], demand())["q"].headroom == headroom


def test_the_headroom_of_a_queue_that_names_no_gpu_is_of_any():
    assert volcano.read(raw(notes={labels.HEADROOM: "2"})).headroom == dict.fromkeys(labels.GPU_RESOURCES, 2)


@pytest.mark.parametrize(
    ("queues", "found"),
    [
        pytest.param([volcano_queue("a", 8)], {"a": 8}, id="a capability"),
        pytest.param([volcano_queue("a")], {"a": None}, id="nothing said is no limit"),
        pytest.param(
            [volcano_queue("a"), volcano_queue("b", guarantee=30)],
            {"a": 70, "b": 100},
            id="what is guaranteed to others is not there",
        ),
        pytest.param(
            [volcano_queue("a", 90), volcano_queue("b", guarantee=30)], {"a": 70, "b": 100}, id="the smaller of both"
        ),
        pytest.param(
            [volcano_queue("a", 50, parent="p"), volcano_queue("p", 20)],
            {"a": 20, "p": 20},
            id="a parent's limit holds for its children",
        ),
        pytest.param(
            [
                volcano_queue("p", 20, guarantee=20),
                volcano_queue("a", parent="p", guarantee=5),
                volcano_queue("b", parent="p"),
                volcano_queue("c"),
            ],
            {"p": 20, "a": 20, "b": 15, "c": 80},
            id="guarantees count among siblings, and are not added up over generations",
        ),
        pytest.param(
            [volcano_queue("root"), volcano_queue("a", guarantee=10), volcano_queue("b")],
            {"root": None, "a": 100, "b": 90},
            id="who names no parent is below the root",
        ),
    ],
)
def test_what_a_volcano_queue_may_have(queues, found):
    assert gpus(limits(queues, {}, TOTAL)) == found


@pytest.mark.parametrize(
    ("queues", "above"),
    [
        pytest.param([volcano_queue("a")], {"a": ""}, id="nobody, where nobody describes the root"),
        pytest.param([volcano_queue("a"), volcano_queue("root")], {"a": "root", "root": ""}, id="the root"),
        pytest.param(
            [volcano_queue("a", parent="p"), volcano_queue("p"), volcano_queue("root", parent="x")],
            {"a": "p", "p": "root", "root": ""},
            id="the parent that it names; the root has none",
        ),
    ],
)
def test_who_is_above_a_volcano_queue(queues, above):
    assert {name: share.parent for name, share in volcano.shares(queues, demand()).items()} == above


def test_volcano_queues_in_a_circle_take_nothing_and_are_told():
    found = volcano.shares(
        [volcano_queue("a", parent="b"), volcano_queue("b", parent="a"), volcano_queue("c")], demand()
    )
    assert {name: (share.open, share.faults) for name, share in found.items()} == {
        "a": (False, ("its parents go in a circle",)),
        "b": (False, ("its parents go in a circle",)),
        "c": (True, ()),
    }


def test_what_siblings_use_is_not_there_for_a_child_whatever_its_own_limit():
    queues = [volcano_queue("p", 20), volcano_queue("a", 20, parent="p"), volcano_queue("b", 20, parent="p")]
    found = volcano.shares(queues, demand(used={"a": 5, "b": 12}))
    assert found["p"].used[GPU] == 17
    assert [room(found, name, GPU) for name in ("p", "a", "b")] == [3, 3, 3]


@pytest.mark.parametrize(
    ("queues", "deserves"),
    [
        pytest.param([volcano_queue("a", deserved=30)], {"a": 30}, id="as it is written"),
        pytest.param([volcano_queue("a", 20, deserved=30)], {"a": 20}, id="no more than is real"),
        pytest.param([volcano_queue("a", guarantee=40, deserved=30)], {"a": 40}, id="no less than is guaranteed"),
        pytest.param(
            [volcano_queue("a", deserved=30), volcano_queue("b")],
            {"a": 30, "b": 0},
            id="unset it is nothing: all is borrowed",
        ),
    ],
)
def test_what_a_volcano_queue_deserves_with_capacity(queues, deserves):
    assert own(volcano.shares(queues, demand(requests={"a": 1}))) == deserves


def test_a_guarantee_of_nothing_deserves_nothing():
    queue = QueueSpec("a", guarantee={GPU: 0}, deserved={"cpu": 1})
    assert volcano.shares([queue], demand())["a"].deserved == {"cpu": 1, GPU: 0}


@pytest.mark.parametrize(
    ("queues", "requests", "deserves", "maximum"),
    [
        pytest.param(
            [volcano_queue("a"), volcano_queue("b", weight=3)],
            {"a": 90, "b": 90},
            {"a": 25, "b": 75},
            {"a": 25, "b": 75},
            id="by weight, when all want more",
        ),
        pytest.param(
            [volcano_queue("a"), volcano_queue("b", weight=3)],
            {"a": 90, "b": 20},
            {"a": 80, "b": 20},
            {"a": 80, "b": 75},
            id="what one does not ask for is the other's",
        ),
        pytest.param(
            [volcano_queue("a"), volcano_queue("b")],
            {"a": 10, "b": 10},
            {"a": 10, "b": 10},
            {"a": 90, "b": 90},
            id="one that asks for little may have all that the others leave",
        ),
        pytest.param(
            [volcano_queue("a"), volcano_queue("b")],
            {"a": 0, "b": 90},
            {"a": 0, "b": 90},
            {"a": 50, "b": 100},
            id="who asks for nothing deserves nothing, and may have its part",
        ),
        pytest.param(
            [volcano_queue("a", 30), volcano_queue("b")],
            {"a": 90, "b": 90},
            {"a": 30, "b": 70},
            {"a": 30, "b": 70},
            id="no more than its capability",
        ),
        pytest.param(
            [volcano_queue("a", guarantee=80), volcano_queue("b"), volcano_queue("c")],
            {"a": 0, "b": 90, "c": 90},
            {"a": 80, "b": 10, "c": 10},
            {"a": 80, "b": 10, "c": 10},
            id="no less than is guaranteed, though nobody asks for it",
        ),
        pytest.param(
            [volcano_queue("a", weight=1), volcano_queue("b", weight=2)],
            {"a": 99, "b": 99},
            {"a": 33, "b": 66},
            {"a": 33, "b": 66},
            id="whole ones",
        ),
    ],
)
def test_without_deserved_proportion_shares_by_weight(queues, requests, deserves, maximum):
    found = volcano.shares(queues, demand(requests=requests))
    assert (own(found), limited(found)) == (deserves, maximum)


def test_elastic_workers_ask_for_nothing():
    found = volcano.shares(
        [volcano_queue("a"), volcano_queue("b")], demand(used={"a": 90}, requests={"a": 10, "b": 40})
    )
    assert (own(found), limited(found)) == ({"a": 10, "b": 40}, {"a": 60, "b": 90})


def quotas(*hards, scopes=(), selector=()):
    more = {"scopes": list(scopes)} if scopes else {}
    more |= {"scopeSelector": {"matchExpressions": list(selector)}} if selector else {}
    return [namespace.read(raw(f"q{index}", hard=hard, **more)) for index, hard in enumerate(hards)]


def test_a_namespaces_quota_is_a_queue():
    (queue,) = quotas({f"requests.{GPU}": "4", "limits.cpu": "9"})
    assert (queue.name, queue.capability, queue.source) == ("namespace/team", {GPU: 4}, "team/q0")
    assert gpus(limits([queue], {}, TOTAL)) == {"namespace/team": 4}


@pytest.mark.parametrize(
    ("hards", "limit"),
    [
        pytest.param([{GPU: 4}], {GPU: 4}, id="a bare name"),
        pytest.param([{"requests.cpu": 3, "cpu": 4}], {"cpu": 3000}, id="both names, the smaller"),
        pytest.param(
            [{f"requests.{GPU}": 3}, {GPU: 4, "cpu": 9}], {GPU: 3, "cpu": 9000}, id="several quotas, the smaller"
        ),
        pytest.param([{"count/pods": 7, "pods": 9}], {"pods": 7}, id="pods, by both names"),
        pytest.param(
            [
                {
                    "count/jobs.batch": 1,
                    "requests.storage": "1Gi",
                    "gold.storageclass.storage.k8s.io/requests.storage": 1,
                }
            ],
            {},
            id="what is not of pods does not count",
        ),
    ],
)
def test_what_a_namespace_may_have(hards, limit):
    assert shares(quotas(*hards), demand())["namespace/team"].limit == limit


@pytest.mark.parametrize(
    ("scopes", "selector", "binds"),
    [
        pytest.param([], [], True, id="no scope"),
        pytest.param(["NotTerminating"], [], True, id="pods without a deadline"),
        pytest.param(["NotBestEffort"], [], True, id="pods with requests"),
        pytest.param(["BestEffort"], [], False, id="pods without requests"),
        pytest.param(["Terminating", "NotBestEffort"], [], False, id="pods with a deadline"),
        pytest.param([], [{"scopeName": "Terminating", "operator": "Exists"}], False, id="the same by a selector"),
        pytest.param(
            [],
            [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}],
            True,
            id="a class that may be theirs",
        ),
    ],
)
def test_a_quota_with_scopes_binds_unless_training_pods_cannot_be_meant(scopes, selector, binds):
    (queue,) = quotas({f"requests.{GPU}": 4}, scopes=scopes, selector=selector)
    assert queue.capability == ({GPU: 4} if binds else {})


def elastic(space, minimum, maximum):
    meta = {"name": "quota", "namespace": space}
    return namespace.read_elastic({"metadata": meta, "spec": {"min": {GPU: minimum}, "max": {GPU: maximum}}})


@pytest.mark.parametrize(
    ("used", "left"),
    [
        pytest.param({}, {"a": 8, "b": 6}, id="up to the max of each"),
        pytest.param({"namespace/a": 5}, {"a": 3, "b": 5}, id="and what is left of all mins"),
        pytest.param({"namespace/a": 8, "namespace/b": 2}, {"a": 0, "b": 0}, id="nothing"),
    ],
)
def test_elastic_quotas_of_scheduler_plugins_lend_the_rest_of_their_mins(used, left):
    found = shares([elastic("a", 4, 8), elastic("b", 6, 6)], demand(used))
    assert {name: room(found, f"namespace/{name}", GPU) for name in "ab"} == left
    assert found["namespace/a"].deserved == {GPU: 4}


def test_two_queues_of_one_name_are_both_at_fault():
    found = shares([volcano_queue("a", 4), kueue.read(raw("a"))], demand())
    assert found["a"].faults == ("two queues have the name a: that of dialect kueue counts",)
