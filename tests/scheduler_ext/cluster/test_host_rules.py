"""Words of a pod on its own kind on one host are read where they surely speak of the pod itself, and only there."""

import json

import pytest

from tests.kit import world
from turnout.kube import labels
from turnout.kube.pod_shape import shape_of
from turnout.scheduler_ext.cluster.member import add_anti_affinity, anti_affinity_ports, max_per_host

OWN = {"matchLabels": {"job": "bert"}}
HOST = labels.HOSTNAME


def keeps_apart(*terms, marks=None):
    """True if a pod of job bert and some labels keeps its kind off its host by one of these terms."""
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}
    return bool(anti_affinity_ports(world.pod("p", 1, marks={"job": "bert", **(marks or {})}, affinity=rules)))


def selects(**expression):
    """True if a selector of one expression is read as one of the pod itself, whose role is `worker`."""
    term = {"topologyKey": HOST, "labelSelector": {"matchExpressions": [expression]}}
    return keeps_apart(term, marks={"role": "worker"})


@pytest.mark.parametrize(("term", "is_apart"), [
    pytest.param({"topologyKey": HOST, "labelSelector": OWN}, True, id="its own label, by host"),
    pytest.param({"topologyKey": "rack", "labelSelector": OWN}, False, id="by another key than the host's name"),
    pytest.param({"topologyKey": HOST, "labelSelector": {"matchLabels": {"job": "gpt"}}}, False, id="another's label"),
    pytest.param({"topologyKey": HOST, "labelSelector": {}}, True, id="a selector of everybody"),
    pytest.param({"topologyKey": HOST}, False, id="no selector selects nobody"),
    pytest.param({"topologyKey": HOST, "labelSelector": {"matchLabels": ["job"]}}, False, id="labels that are none"),
    pytest.param({"topologyKey": HOST, "labelSelector": OWN, "namespaces": ["default"]}, True, id="its own namespace"),
    pytest.param({"topologyKey": HOST, "labelSelector": OWN, "namespaces": ["other"]}, False, id="another namespace"),
    pytest.param({"topologyKey": HOST, "labelSelector": OWN, "namespaces": "default"}, False, id="no list of them"),
    pytest.param({"topologyKey": HOST, "labelSelector": OWN, "namespaceSelector": {}}, True, id="all namespaces"),
    pytest.param(
        {"topologyKey": HOST, "labelSelector": OWN, "namespaceSelector": {"matchLabels": {"a": "b"}}}, False,
        id="namespaces by labels, which nobody here knows",
    ),
])  # fmt: skip
def test_which_anti_affinity_keeps_a_pods_own_kind_apart(term, is_apart):
    assert keeps_apart(term) is is_apart


@pytest.mark.parametrize(("expression", "is_selected"), [
    pytest.param({"key": "role", "operator": "In", "values": ["worker", "chief"]}, True, id="one of its values"),
    pytest.param({"key": "role", "operator": "In", "values": ["chief"]}, False, id="none of its values"),
    pytest.param({"key": "role", "operator": "In"}, False, id="of no values"),
    pytest.param({"key": "role", "operator": "NotIn", "values": ["chief"]}, True, id="not another value"),
    pytest.param({"key": "role", "operator": "NotIn", "values": ["worker"]}, False, id="not its value"),
    pytest.param({"key": "role", "operator": "Exists"}, True, id="a label that it has"),
    pytest.param({"key": "zone", "operator": "Exists"}, False, id="a label that it lacks"),
    pytest.param({"key": "zone", "operator": "DoesNotExist"}, True, id="no label, as it has none"),
    pytest.param({"key": "role", "operator": "DoesNotExist"}, False, id="no label, though it has one"),
    pytest.param({"key": "role", "operator": "Near"}, False, id="a word that nobody knows"),
])  # fmt: skip
def test_which_expressions_select_the_pod_itself(expression, is_selected):
    assert selects(**expression) is is_selected


def test_all_of_a_selector_must_hold():
    both = {"matchLabels": {"job": "bert"}, "matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    assert not keeps_apart({"topologyKey": HOST, "labelSelector": both})
    assert keeps_apart({"topologyKey": HOST, "labelSelector": both}, marks={"zone": "1"})


def test_each_term_is_looked_at_and_pods_of_one_term_get_one_mark():
    useless, useful = {"topologyKey": "rack", "labelSelector": OWN}, {"topologyKey": HOST, "labelSelector": OWN}
    assert keeps_apart(useless, useful)
    far = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [useful]}}
    one, other = (world.pod(name, 1, marks={"job": "bert"}, affinity=far) for name in ("one", "other"))
    assert anti_affinity_ports(one) == anti_affinity_ports(other)
    elsewhere = world.pod("one", 1, namespace="other", marks={"job": "bert"}, affinity=far)
    assert anti_affinity_ports(one) != anti_affinity_ports(elsewhere)


@pytest.mark.parametrize(("over", "is_left"), [
    pytest.param(0, True, id="the longest that is read"),
    pytest.param(1, False, id="a letter more"),
])  # fmt: skip
def test_a_selector_without_end_is_left_to_the_scheduler(over, is_left):
    expression = {"key": "job", "operator": "In", "values": ["bert", ""]}
    selector = {"matchExpressions": [expression]}
    short = json.dumps([["default"], selector])
    expression["values"][1] = "x" * (4096 - len(short) + over)
    assert keeps_apart({"topologyKey": HOST, "labelSelector": selector}) is is_left


def test_a_pods_shape_says_who_keeps_apart_and_is_one_object_for_all_alike():
    terms = [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"a": "1", "b": "2"}}}]
    swapped = [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"b": "2", "a": "1"}}}]
    shapes = []
    for each in (terms, swapped):
        rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": each}}
        pod = world.pod("p", 1, marks={"a": "1", "b": "2"}, affinity=rules)
        shapes.append(add_anti_affinity(shape_of(pod), pod))
    plain = world.pod("p", 1)
    assert shapes[0] is shapes[1]
    assert shapes[0] != shape_of(plain)
    assert add_anti_affinity(shape_of(plain), plain) is shape_of(plain)


def spread(**more):
    """A hard spread constraint by host name that selects the pod of job bert."""
    return {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": OWN, **more}


def soft_or_hard_untold():
    """Return the same constraint, which does not say whether it is hard."""
    return {key: value for key, value in spread().items() if key != "whenUnsatisfiable"}


@pytest.mark.parametrize(("rules", "maximum"), [
    pytest.param([], None, id="none"),
    pytest.param([spread()], 1, id="one a host"),
    pytest.param([spread(maxSkew=3), spread(maxSkew=2)], 2, id="of two the narrower"),
    pytest.param([{**spread(), "whenUnsatisfiable": "ScheduleAnyway"}], None, id="a soft one"),
    pytest.param([soft_or_hard_untold()], 1, id="hard, as nothing else is said"),
    pytest.param([spread(topologyKey="rack")], None, id="by another key"),
    pytest.param([spread(labelSelector={"matchLabels": {"job": "gpt"}})], None, id="of other pods"),
    pytest.param([spread(maxSkew=0)], None, id="of none a host"),
    pytest.param([spread(maxSkew="2")], None, id="of a text"),
    pytest.param(["words"], None, id="no constraint at all"),
])  # fmt: skip
def test_how_many_of_its_kind_a_host_may_hold(rules, maximum):
    assert max_per_host(world.pod("p", 1, marks={"job": "bert"}, topologySpreadConstraints=rules)) == maximum
