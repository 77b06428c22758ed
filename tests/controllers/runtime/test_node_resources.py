"""A job that asks for a device which no node has is told so, once: most often its device plugin is not installed."""

import pytest

from tests.controllers import test_msjob
from tests.controllers.jobs import CONTAINER, NOW_S, job, role, view, with_status
from turnout.controllers.kinds.msjob import MSJOB
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.model import OwnedObjects, Reason
from turnout.controllers.reconcile import reconcile
from turnout.controllers.role_pods import extended_resources, missing_device_texts
from turnout.controllers.runtime.owned_objects import NodeResources, OfferedStatus, OfferingNode
from turnout.kube.objects import ObjectMeta
from turnout.kube.watch_events import Key

GPU, OTHER = "nvidia.com/gpu", "example.com/card"


def asks(resources, replicas=2):
    return job(worker=role(replicas, containers=[{**CONTAINER, "resources": resources}]))


def limits_of(raw, offered, kind=PYTORCHJOB):
    outcome = reconcile(kind, raw, OwnedObjects(offered=offered), NOW_S)
    return [each.text for each in outcome.events if each.reason is Reason.NOT_OFFERED], outcome


@pytest.mark.contract("MS-36")
def test_an_ms_job_for_gpus_that_no_node_has_is_told_what_to_look_at():
    container = {**test_msjob.CONTAINER, "resources": {"limits": {GPU: 1}}}
    roles = {"Scheduler": test_msjob.role(), "Worker": test_msjob.role(4, container=container)}
    (text,), _ = limits_of(test_msjob.job(roles), frozenset({OTHER}), MSJOB)
    assert text.startswith(f"Worker asks for {GPU}, which no node offers: nodes offer {OTHER}. Is the device plugin")


@pytest.mark.contract("MS-36")
def test_it_is_told_once_a_job():
    raw = asks({"limits": {GPU: 1}})
    texts, outcome = limits_of(raw, frozenset())
    assert len(texts) == 1
    assert limits_of(with_status(raw, outcome), frozenset())[0] == []


@pytest.mark.parametrize(
    ("resources", "offered", "count"),
    [
        pytest.param({"limits": {GPU: 1}}, {GPU}, 0, id="what a node has"),
        pytest.param({"limits": {GPU: 1}}, None, 0, id="what nobody knows, since nodes may not be listed"),
        pytest.param({"requests": {GPU: 1}}, set(), 1, id="a request alone"),
        pytest.param({"limits": {GPU: 0}}, set(), 0, id="none of it"),
        pytest.param({"limits": {GPU: "no number"}}, set(), 0, id="no quantity"),
        pytest.param({"limits": {"cpu": 1, "memory": "1Gi", "hugepages-2Mi": "1Gi"}}, set(), 0, id="what is no device"),
        pytest.param({"limits": {"attachable.kubernetes.io/x": 1}}, set(), 0, id="what is Kubernetes's own"),
        pytest.param("much", set(), 0, id="nonsense"),
    ],
)
def test_events_of_a_job_that_asks_for(resources, offered, count):
    assert len(limits_of(asks(resources), None if offered is None else frozenset(offered))[0]) == count


def test_a_role_without_replicas_asks_for_nothing():
    assert missing_device_texts(view(asks({"limits": {GPU: 1}}, replicas=0)), frozenset()) == []


def test_long_lists_are_cut():
    limits = {f"example.com/card-{number}": 1 for number in range(10)}
    (text,) = missing_device_texts(view(asks({"limits": limits})), frozenset())
    assert "card-7 and 2 more, which no node offers: nodes offer no extended resource at all." in text


def node(name, **allocatable):
    return OfferingNode(ObjectMeta(name=name), OfferedStatus(allocatable))


def test_nodes_offer_together_what_any_of_them_has():
    nodes = NodeResources()
    nodes.put(node("a", **{GPU: "8", "cpu": "4"}))
    assert nodes.offered is None
    nodes.put(node("b", **{GPU: "8", OTHER: "1"}))
    nodes.synced("9")
    assert nodes.offered == {GPU, OTHER}
    nodes.put(node("b", **{GPU: "8", OTHER: "0"}))
    assert nodes.offered == {GPU}
    nodes.drop(Key("", "a", "u"))
    assert nodes.offered == {GPU}
    nodes.drop(Key("", "b", "u"))
    nodes.drop(Key("", "c", "u"))
    assert nodes.offered == frozenset()


def test_a_node_that_says_nothing_offers_nothing():
    nodes = NodeResources()
    nodes.put(replace_status(node("a"), None))
    nodes.synced("9")
    assert (nodes.offered, extended_resources(None), extended_resources([GPU])) == (
        frozenset(),
        frozenset(),
        frozenset(),
    )


def replace_status(raw_node, allocatable):
    raw_node.status.allocatable = allocatable
    return raw_node
