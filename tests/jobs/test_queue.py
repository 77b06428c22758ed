"""Queues in their dialects, and what each may have: facts/autoscaling.md 6."""

import pytest

from jobs.queues import koordinator, kueue, namespace, volcano
from jobs.queues.all import limits
from jobs.queues.model import Dialect, QueueSpec

GPU = "nvidia.com/gpu"
TOTAL = {GPU: 100}


def raw(name="q", notes=None, marks=None, **spec):
    return {
        "metadata": {"name": name, "namespace": "team", "annotations": notes or {}, "labels": marks or {}},
        "spec": spec,
    }


def gpus(found):
    return {name: told.get(GPU) for name, told in found.items()}


def volcano_queue(name, capability=None, guarantee=None, parent=""):
    told = {"capability": {GPU: capability} if capability else {}, "guarantee": {GPU: guarantee} if guarantee else {}}
    return QueueSpec(name, Dialect.VOLCANO, parent=parent, **told)


def test_a_volcano_queue_is_read():
    told = raw(capability={GPU: "8", "cpu": "96"}, guarantee={"resource": {GPU: 2}}, deserved={GPU: "4"}, parent="root")
    queue = volcano.read(told)
    assert (queue.capability[GPU], queue.capability["cpu"]) == (8, 96_000)
    assert (queue.guarantee, queue.deserved, queue.parent, queue.open) == ({GPU: 2}, {GPU: 4}, "root", True)
    assert not volcano.read({**told, "status": {"state": "Closing"}}).open


def test_an_amount_that_cannot_be_read_is_told_and_counts_as_absent():
    queue = volcano.read(raw(capability={GPU: "lots"}))
    assert queue.capability == {}
    assert "spec.capability.nvidia.com/gpu" in queue.faults[0]


def test_a_namespaces_quota_is_a_queue():
    queue = namespace.read(raw(hard={f"requests.{GPU}": "4", "limits.cpu": "9"}))
    assert (queue.name, queue.capability) == ("namespace/team", {GPU: 4})
    assert gpus(limits([queue], {}, TOTAL)) == {"namespace/team": 4}


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
            [volcano_queue("a", 5, parent="b"), volcano_queue("b", 9, parent="a")],
            {"a": 5, "b": 5},
            id="parents in a circle end",
        ),
    ],
)
def test_what_a_volcano_queue_may_have(queues, found):
    assert gpus(limits(queues, {}, TOTAL)) == found


def quota(name, least, most, weight=None, **marks):
    notes = {f"{koordinator.LABEL}shared-weight": f'{{"{GPU}": {weight}}}'} if weight else {}
    marks = {koordinator.LABEL + key.replace("_", "-"): value for key, value in marks.items()}
    return koordinator.read(raw(name, notes, marks, min={GPU: least}, max={GPU: most}))


@pytest.mark.parametrize(
    ("queues", "used", "found"),
    [
        pytest.param([quota("a", 4, 10)], {}, {"a": 4}, id="alone it has its min"),
        pytest.param([quota("a", 4, 10), quota("b", 6, 10)], {"a": 4}, {"a": 10, "b": 6}, id="and what others leave"),
        pytest.param([quota("a", 4, 7), quota("b", 6, 10)], {"a": 4}, {"a": 7, "b": 6}, id="up to its max"),
        pytest.param([quota("a", 4, 10), quota("b", 6, 10)], {"a": 4, "b": 6}, {"a": 4, "b": 6}, id="nothing is left"),
        pytest.param(
            [quota("a", 4, 10), quota("b", 6, 10, allow_lent_resource="false")],
            {"a": 4},
            {"a": 4, "b": 6},
            id="nor what is not lent",
        ),
        pytest.param(
            [quota("a", 2, 20, 1), quota("b", 2, 20, 3), quota("c", 8, 20)],
            {"a": 2, "b": 2},
            {"a": 4, "b": 8, "c": 8},
            id="those in need share it by weight",
        ),
        pytest.param(
            [quota("a", 4, 10, parent="x"), quota("b", 6, 10, parent="y")],
            {"a": 4},
            {"a": 4, "b": 6},
            id="within one parent",
        ),
    ],
)
def test_what_an_elastic_quota_may_have(queues, used, found):
    assert gpus(limits(queues, {name: {GPU: count} for name, count in used.items()}, TOTAL)) == found


def test_a_weight_that_cannot_be_read_is_told():
    made = koordinator.read(raw("a", {f"{koordinator.LABEL}shared-weight": "heavy"}, min={GPU: 1}))
    assert (made.weight, len(made.faults)) == (1, 1)


def cluster_queue(name, nominal, cohort="", lending=None, borrowing=None, **more):
    resource = {"name": GPU, "nominalQuota": nominal}
    resource |= {} if lending is None else {"lendingLimit": lending}
    resource |= {} if borrowing is None else {"borrowingLimit": borrowing}
    groups = [{"flavors": [{"name": "f", "resources": [resource]}]}]
    return kueue.read(raw(name, resourceGroups=groups, cohortName=cohort, **more))


@pytest.mark.parametrize(
    ("queues", "used", "found"),
    [
        pytest.param([cluster_queue("a", 8)], {"a": 3}, {"a": 8}, id="alone it has its quota"),
        pytest.param(
            [cluster_queue("a", 8, "c"), cluster_queue("b", 4, "c")], {"a": 8}, {"a": 12, "b": 4}, id="a cohort's, too"
        ),
        pytest.param(
            [cluster_queue("a", 8, "c"), cluster_queue("b", 4, "c")],
            {"b": 3},
            {"a": 9, "b": 12},
            id="as far as it is left",
        ),
        pytest.param(
            [cluster_queue("a", 8, "c", borrowing=1), cluster_queue("b", 4, "c")],
            {},
            {"a": 9, "b": 12},
            id="no more than it may borrow",
        ),
        pytest.param(
            [cluster_queue("a", 8, "c", lending=2), cluster_queue("b", 4, "c")],
            {},
            {"a": 12, "b": 6},
            id="no more than others lend",
        ),
        pytest.param(
            [cluster_queue("a", 8, "c"), cluster_queue("b", 4, "d")], {}, {"a": 8, "b": 4}, id="not of another cohort"
        ),
    ],
)
def test_what_a_cluster_queue_may_have(queues, used, found):
    assert gpus(limits(queues, {name: {GPU: count} for name, count in used.items()}, TOTAL)) == found


def test_flavors_are_added_up_and_a_stopped_queue_is_closed():
    flavors = [{"name": n, "resources": [{"name": GPU, "nominalQuota": "4"}]} for n in ("a100", "h100")]
    made = kueue.read(raw(resourceGroups=[{"flavors": flavors}], stopPolicy="Hold"))
    assert (made.deserved, made.open) == ({GPU: 8}, False)


def test_a_local_queue_leads_to_a_cluster_queue():
    assert kueue.local_queue(raw("lq", clusterQueue="cq")) == ("team/lq", "cq")
