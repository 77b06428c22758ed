"""A pod costs a bounded number of steps a node: one that asks for more is unreadable, wherever it is read."""

import msgspec
import pytest

from turnout.jobs.fields import ObjectPart
from turnout.jobs.gang import wants_gate
from turnout.jobs.kinds.job_kind import worker_shape
from turnout.jobs.model import BadJob
from turnout.kube import labels, pod_shape
from turnout.kube.errors import TooComplex
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import MAX_ITEMS, MAX_VALUES, admits, preferred_terms, shape_of
from turnout.scheduler_ext.cluster.view import ClusterView

GPU = "nvidia.com/gpu"


def expressions(count, values=1):
    return [{"key": f"k{at}", "operator": "In", "values": [f"v{one}" for one in range(values)]} for at in range(count)]


def required(*terms):
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": affinity}}


def alike(count, **term):
    return required(*({"matchExpressions": expressions(1)} | term for _ in range(count)))


def spec(node="", **more):
    resources = {"requests": {GPU: "1", **more.pop("requests", {})}}
    ports = [{"hostPort": at + 1, "containerPort": at + 1} for at in range(more.pop("ports", 0))]
    return {"nodeName": node, "containers": [{"name": "m", "resources": resources, "ports": ports}], **more}


def pod(**more):
    return msgspec.convert({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec(**more)}, Pod)


TOO_MUCH = [
    pytest.param(alike(15_000), "node affinity", id="15,000 terms"),
    pytest.param(alike(MAX_ITEMS + 1), "node affinity", id="one term too many"),
    pytest.param(required(*[{}] * (MAX_ITEMS + 1)), "node affinity", id="empty terms count, too"),
    pytest.param(required({"matchExpressions": expressions(MAX_ITEMS + 1)}), "node affinity", id="expressions"),
    pytest.param(required({"matchFields": expressions(MAX_ITEMS + 1)}), "node affinity", id="fields"),
    pytest.param(required({"matchExpressions": expressions(1, MAX_VALUES + 1)}), "values", id="values of one"),
    pytest.param(required({"matchExpressions": expressions(64, MAX_VALUES // 60)}), "values", id="values of many"),
    pytest.param({"nodeSelector": {f"k{at}": "v" for at in range(MAX_ITEMS + 1)}}, "nodeSelector", id="a selector"),
    pytest.param({"tolerations": [{"key": f"k{at}"} for at in range(MAX_ITEMS + 1)]}, "tolerations", id="tolerations"),
    pytest.param({"requests": {f"example.com/{at}": "1" for at in range(MAX_ITEMS)}}, "resources", id="resources"),
    pytest.param({"ports": MAX_ITEMS + 1}, "ports", id="host ports"),
]
ENOUGH = [
    pytest.param(alike(MAX_ITEMS), id="as many terms as are read"),
    pytest.param(required({"matchExpressions": expressions(1, MAX_VALUES)}), id="as many values"),
    pytest.param({"tolerations": [{"key": f"k{at}"} for at in range(MAX_ITEMS)]}, id="as many tolerations"),
    pytest.param({"ports": MAX_ITEMS}, id="as many ports"),
]


@pytest.mark.parametrize(("more", "what"), TOO_MUCH)
def test_a_pod_that_asks_for_too_much_is_unreadable(more, what):
    with pytest.raises(TooComplex, match=what) as error:
        shape_of(pod(**more))
    assert any(f"at most {bound} are read" in str(error.value) for bound in (MAX_ITEMS, MAX_VALUES))


@pytest.mark.parametrize("more", ENOUGH)
def test_a_pod_within_the_bounds_is_read_whole(more):
    found = shape_of(pod(**more))
    assert found != shape_of(pod())


@pytest.mark.parametrize(("more", "what"), TOO_MUCH)
def test_a_pod_on_a_node_takes_its_room_whatever_else_it_says(more, what):
    found = shape_of(pod(node="a", **more))
    assert dict(found.requests)[GPU] == 1
    assert (found.terms, found.selector, found.tolerations) == (None, (), ())
    assert len(found.host_ports) <= MAX_ITEMS


@pytest.mark.parametrize(("more", "what"), TOO_MUCH)
def test_the_extender_counts_it_as_unreadable_and_no_gate_is_put_on_it(more, what):
    view = ClusterView((GPU,))
    view.put_pod(pod(**more))
    assert (view.unreadable_pods, dict(view.pods)) == (1, {})
    assert not wants_gate(pod(**more))


@pytest.mark.parametrize(("more", "what"), TOO_MUCH)
def test_a_job_with_such_a_template_is_told_what_is_too_much(more, what):
    with pytest.raises(BadJob, match=what):
        worker_shape(ObjectPart({"spec": spec(**more)}, "spec.template"))


def test_soft_terms_beyond_the_bound_are_given_up():
    many = {"weight": 1, "preference": {"matchExpressions": expressions(MAX_ITEMS + 1)}}
    few = {"weight": 1, "preference": {"matchExpressions": expressions(2)}}

    def wishes(*terms):
        affinity = {"preferredDuringSchedulingIgnoredDuringExecution": list(terms)}
        return preferred_terms(pod(affinity={"nodeAffinity": affinity}))

    assert len(wishes(few, few)) == 2
    assert wishes(few, many) == ()


def test_values_are_looked_up_and_not_walked_through():
    compared = []

    class Value(str):
        __slots__ = ()

        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    values = tuple(Value(f"v{at}") for at in range(MAX_VALUES))
    shape = pod_shape.PodShape((("pods", 1),), terms=(((("k", "In", values),), ()),))
    for at in range(100):
        node = msgspec.convert({"metadata": {"name": f"n{at}", "labels": {"k": f"other{at}"}}}, Node)
        assert not admits(node, shape)
    assert len(compared) < MAX_VALUES  # a walk would compare 100 times as many
    assert admits(msgspec.convert({"metadata": {"labels": {"k": "v7", labels.HOSTNAME: "n"}}}, Node), shape)
