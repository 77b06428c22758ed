"""The shape of a pod, and which nodes take it."""

import msgspec
import pytest

from tests.kit import world
from turnout.kube.errors import BadQuantity
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import MAX_AMOUNT, admits, pod_requests, shape_of


def pod(spec):
    return msgspec.json.decode(msgspec.json.encode({"spec": spec}), type=Pod)


def box(requests=None, limits=None, **more):
    """A container."""
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def sidecar(requests):
    return box(requests, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "amounts"),
    [
        pytest.param({"containers": [box()]}, {}, id="nothing asked, only a place among the node's pods"),
        pytest.param({"containers": [box({"cpu": "1500m"}), box({"cpu": 1})]}, {"cpu": 2500}, id="containers add up"),
        pytest.param({"containers": [box({"cpu": "0.1"})]}, {"cpu": 100}, id="CPU counts in milli-CPU"),
        pytest.param({"containers": [box({"memory": "1Gi"})]}, {"memory": 1 << 30}, id="memory in bytes"),
        pytest.param(
            {"containers": [box(limits={"nvidia.com/gpu": "8"})]}, {"nvidia.com/gpu": 8}, id="a limit stands in"
        ),
        pytest.param(
            {"containers": [box({"cpu": "1"}, {"cpu": "4"})]}, {"cpu": 1000}, id="but not where a request is given"
        ),
        pytest.param(
            {"containers": [box({"cpu": "1"})], "initContainers": [box({"cpu": "3"}), box({"cpu": "2"})]},
            {"cpu": 3000},
            id="init containers run one after the other",
        ),
        pytest.param(
            {"containers": [box({"cpu": "4"})], "initContainers": [box({"cpu": "3"})]},
            {"cpu": 4000},
            id="and before the others",
        ),
        pytest.param(
            {"containers": [box({"cpu": "1"})], "initContainers": [sidecar({"cpu": "2"})]},
            {"cpu": 3000},
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            {"containers": [box({"cpu": "1"})], "initContainers": [sidecar({"cpu": "2"}), box({"cpu": "5"})]},
            {"cpu": 7000},
            id="and beside the init containers after it",
        ),
        pytest.param(
            {"containers": [box({"cpu": "1"})], "initContainers": [box({"cpu": "5"}), sidecar({"cpu": "2"})]},
            {"cpu": 5000},
            id="not beside those before it",
        ),
        pytest.param(
            {"containers": [box({"cpu": "1"})], "overhead": {"cpu": "250m"}}, {"cpu": 1250}, id="overhead is added"
        ),
        pytest.param(
            {"containers": [box({"cpu": "1", "memory": "1Ki"})], "resources": {"requests": {"cpu": "8"}}},
            {"cpu": 8000, "memory": 1024},
            id="a pod-level request replaces the sum",
        ),
        pytest.param(
            {"containers": [box({"cpu": "1"})], "resources": {"limits": {"cpu": "8"}}},
            {"cpu": 1000},
            id="a pod-level limit replaces nothing that is asked",
        ),
        pytest.param({"containers": [box({"cpu": "0"})]}, {}, id="asking for nothing is not asking"),
        pytest.param({"containers": [box({"cpu": "-1"})]}, {}, id="nor is asking for less"),
        pytest.param(
            {"containers": [box({"cpu": "1e99"}), box({"cpu": "1e99"})]}, {"cpu": MAX_AMOUNT}, id="all there is"
        ),
    ],
)
def test_what_a_pod_takes(spec, amounts):
    assert dict(pod_requests(pod(spec))) == {**amounts, "pods": 1}


@pytest.mark.parametrize("quantity", ["many", "", "NaN", "0x10", "1" * 200])
def test_a_quantity_that_nobody_can_read_is_told(quantity):
    with pytest.raises(BadQuantity):
        shape_of(pod({"containers": [box({"cpu": quantity})]}))


def test_host_ports_are_those_that_the_node_gives_away():
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}, {"containerPort": 53, "protocol": "UDP"}]
    assert shape_of(pod({"containers": [box(ports=ports)]})).host_ports == (("TCP", 8081),)
    inits = [box(ports=[{"containerPort": 9, "hostPort": 9}]), box(ports=ports) | {"restartPolicy": "Always"}]
    assert shape_of(pod({"containers": [box()], "initContainers": inits})).host_ports == (("TCP", 8081),)
    every = (("TCP", 80), ("TCP", 81), ("TCP", 8081), ("UDP", 53))
    assert shape_of(pod({"containers": [box(ports=ports)], "hostNetwork": True})).host_ports == every


def test_equal_shapes_are_one_object():
    one, other = world.volcano("bert", 2)
    assert shape_of(one) is shape_of(other)
    assert shape_of(one) != shape_of(world.pod("p", 4))


TAINT = {"key": "gpu", "value": "a100", "effect": "NoSchedule"}
EVICTING = {**TAINT, "effect": "NoExecute"}


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def wants(key, operator, *values):
    return affinity({"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]})


def named(operator, *names):
    return affinity({"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]})


@pytest.mark.parametrize(
    ("node", "spec", "takes"),
    [
        pytest.param({}, {}, True, id="a plain node takes a plain pod"),
        pytest.param({"conditions": []}, {}, True, id="a node that says nothing of being ready is ready"),
        pytest.param({"conditions": [{"type": "Ready", "status": "Unknown"}]}, {}, False, id="not one that is silent"),
        pytest.param({"spec": {"unschedulable": True}}, {}, False, id="not a cordoned one"),
        pytest.param(
            {"spec": {"unschedulable": True}}, {"tolerations": [{"operator": "Exists"}]}, True, id="unless tolerated"
        ),
        pytest.param({"taints": [TAINT]}, {}, False, id="a taint keeps away"),
        pytest.param({"taints": [EVICTING]}, {}, False, id="so does one that evicts"),
        pytest.param({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, {}, True, id="a wish does not"),
        pytest.param({"taints": [TAINT]}, {"tolerations": [TAINT]}, True, id="tolerated by value"),
        pytest.param({"taints": [TAINT]}, {"tolerations": [{**TAINT, "value": "h100"}]}, False, id="another value"),
        pytest.param({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, True, id="by key"),
        pytest.param(
            {"taints": [TAINT]}, {"tolerations": [{**TAINT, "effect": "NoExecute"}]}, False, id="another effect"
        ),
        pytest.param({"taints": [TAINT]}, {"tolerations": [{"operator": "Equal"}]}, False, id="no key is no wildcard"),
        pytest.param({"labels": {"zone": "a"}}, {"nodeSelector": {"zone": "a"}}, True, id="selected"),
        pytest.param({"labels": {"zone": "b"}}, {"nodeSelector": {"zone": "a"}}, False, id="not selected"),
        pytest.param({"labels": {"zone": "a"}}, wants("zone", "In", "a", "b"), True, id="In"),
        pytest.param({}, wants("zone", "In", "a"), False, id="In, without the label"),
        pytest.param({}, wants("zone", "NotIn", "a"), True, id="NotIn, without the label"),
        pytest.param({"labels": {"zone": "a"}}, wants("zone", "NotIn", "a"), False, id="NotIn"),
        pytest.param({"labels": {"zone": ""}}, wants("zone", "Exists"), True, id="Exists"),
        pytest.param({"labels": {"zone": ""}}, wants("zone", "DoesNotExist"), False, id="DoesNotExist"),
        pytest.param({"labels": {"gen": "9"}}, wants("gen", "Gt", "10"), False, id="Gt counts, it does not spell"),
        pytest.param({"labels": {"gen": "9"}}, wants("gen", "Lt", "10"), True, id="Lt"),
        pytest.param({"labels": {"gen": "x"}}, wants("gen", "Lt", "10"), False, id="Lt of no number"),
        pytest.param({"labels": {"gen": "9"}}, wants("gen", "Near", "9"), False, id="an operator nobody knows"),
        pytest.param({"name": "n7"}, named("In", "n7"), True, id="by name"),
        pytest.param({"name": "n8"}, named("In", "n7"), False, id="by another name"),
        pytest.param({}, affinity(), False, id="no term matches nothing"),
        pytest.param({}, affinity({}), False, id="an empty term matches nothing"),
        pytest.param(
            {"labels": {"zone": "b"}},
            affinity(
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
            ),
            True,
            id="one term of several is enough",
        ),
    ],
)
def test_which_nodes_take_a_pod(node, spec, takes):
    assert admits(world.node(node.pop("name", "n0"), **node), shape_of(pod({"containers": [box()], **spec}))) is takes
