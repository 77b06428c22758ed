"""The shape of a pod: everything that decides on which nodes it can run, and how many of it one node holds.

Two pods of one shape are alike to a planner. Where the pod is, and whose it is, is told elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from turnout.kube import labels
from turnout.kube.errors import TooComplex
from turnout.kube.objects import Container, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration
from turnout.kube.quantity import milli, whole

Requirement = tuple[str, str, tuple[str, ...]]  # key, operator, values
Term = tuple[tuple[Requirement, ...], tuple[Requirement, ...]]  # on labels, on fields
_LookedRequirement = tuple[str, str, Collection[str]]  # with a set of values where they are looked up
_Looked = tuple[tuple[_LookedRequirement, ...], tuple[_LookedRequirement, ...]]

MOST = 1 << 52  # 4 PiB: beyond any node, and a node's pods may each ask for it without overflowing 64 bits
MOST_RULES = 64  # terms and expressions of node affinity; also of a selector, tolerations, resources, host ports
MOST_VALUES = 1_024  # of all expressions together
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")  # as affinity compares them: 64 bits
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
SOFT_EFFECT = "PreferNoSchedule"

HostPort = tuple[str, int]  # protocol and number


@dataclass(frozen=True)
class PodShape:
    """The shape of a pod. A pod that asks for nothing but resources has empty tuples elsewhere.

    requests: (resource, amount), sorted; CPU in milli-CPU, the rest in base units, "pods" always 1. host_ports:
    (protocol, port).
    """

    requests: tuple[tuple[str, int], ...]
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[tuple[str, str, str, str], ...] = ()  # key, operator, value, effect
    host_ports: tuple[HostPort, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.requests, self.selector, self.terms, self.tolerations, self.host_ports))

    @cached_property
    def _looked_up(self) -> tuple[_Looked, ...] | None:
        terms = self.terms
        return None if terms is None else tuple((_sets(on_labels), _sets(on_fields)) for on_labels, on_fields in terms)

    def __hash__(self) -> int:
        """Return the hash, which is computed once: shapes are looked up all the time, and their tuples are long."""
        return self._hash

    def gpus(self, resources: tuple[str, ...] = labels.GPU_RESOURCES) -> int:
        """How many accelerators one pod asks for, over all resources that count as one (DL-20)."""
        return sum(amount for name, amount in self.requests if name in resources)


def shape_of(pod: Pod) -> PodShape:
    """Read the shape of a pod. Raises BadQuantity when a request cannot be read, TooComplex when it asks for too much.

    A pod that has a node is not placed any more, so one that asks for too much still takes its room there.
    """
    spec = pod.spec
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    ports = sorted(
        {(p.protocol, p.host_port) for c in spec.containers for p in c.ports or () if p.host_port}
        | {(p.protocol, p.container_port) for c in spec.containers for p in c.ports or () if spec.host_network}
    )
    shape = PodShape(
        requests=requests_of(pod),
        selector=tuple(sorted((spec.node_selector or {}).items())),
        terms=None if required is None else tuple(_term(t) for t in required.node_selector_terms),
        tolerations=tuple(sorted({_toleration(t) for t in spec.tolerations or ()})),
        host_ports=tuple(ports),
    )
    if (fault := _too_complex(shape)) is None:
        return _one_of_a_kind(shape)
    if not spec.node_name:
        raise fault
    return _one_of_a_kind(PodShape(shape.requests, host_ports=shape.host_ports[:MOST_RULES]))


def _too_complex(shape: PodShape) -> TooComplex | None:
    """Tell what of a shape is too much to be judged on every node; None for one within the bounds."""
    rules, values = _size(shape.terms or ())
    counts = (
        ("terms and expressions of node affinity", rules, MOST_RULES),
        ("values of node affinity", values, MOST_VALUES),
        ("labels in its nodeSelector", len(shape.selector), MOST_RULES),
        ("tolerations", len(shape.tolerations), MOST_RULES),
        ("resources", len(shape.requests), MOST_RULES),
        ("host ports", len(shape.host_ports), MOST_RULES),
    )
    return next((TooComplex(what, count, most) for what, count, most in counts if count > most), None)


def _size(terms: Iterable[Term]) -> tuple[int, int]:
    """Count the expressions of terms, one at least for each term, and the values of all of them."""
    rules = values = 0
    for on_labels, on_fields in terms:
        rules += max(1, len(on_labels) + len(on_fields))
        values += sum(len(each) for _, _, each in (*on_labels, *on_fields))
    return rules, values


@lru_cache(maxsize=4096)
def _one_of_a_kind(shape: PodShape) -> PodShape:
    """Equal shapes become one object: thousands of pods have few, and one is quickly found equal to itself."""
    return shape


def requests_of(pod: Pod) -> tuple[tuple[str, int], ...]:
    """Work out what the pod takes from a node: the larger of its containers' sum and its init containers' peak.

    Sidecars (init containers that always restart) count with the containers, and with the init containers that start
    after them. Overhead is added. Pod-level CPU and memory replace the sum (KEP-2837).
    """
    running: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(running, container_requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers or ():
        own = container_requests(container)
        if container.restart_policy == "Always":
            _add(running, own)
            _add(sidecars, own)
            own = dict(sidecars)
        else:
            _add(own, sidecars)
        for name, amount in own.items():
            peak[name] = max(peak.get(name, 0), amount)
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}
    if pod.spec.resources and (pod_level := _amounts(pod.spec.resources.requests)):
        total.update(pod_level)
    _add(total, _amounts(pod.spec.overhead))
    total["pods"] = 1
    return tuple(sorted((name, min(amount, MOST)) for name, amount in total.items() if amount > 0))


def container_requests(container: Container) -> dict[str, int]:
    """Return a container's requests. A limit stands in for an absent request, as the API server defaults it."""
    if container.resources is None:
        return {}
    return {**_amounts(container.resources.limits), **_amounts(container.resources.requests)}


def amount(resource: str, quantity: str | int | float) -> int:
    """Convert a quantity to milli-CPU for "cpu", else to base units (bytes, counts), rounded up; 0..MOST."""
    return max(0, min(milli(quantity) if resource == "cpu" else whole(quantity), MOST))


def _amounts(quantities: Mapping[str, str | int | float] | None) -> dict[str, int]:
    return {name: amount(name, quantity) for name, quantity in (quantities or {}).items()}


def _add(into: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0) + value


def _term(term: NodeSelectorTerm) -> Term:
    return _requirements(term.match_expressions), _requirements(term.match_fields)


def _requirements(wanted: list[NodeSelectorRequirement] | None) -> tuple[Requirement, ...]:
    return tuple((r.key, r.operator, tuple(r.values or ())) for r in wanted or ())


def _toleration(toleration: Toleration) -> tuple[str, str, str, str]:
    return toleration.key, toleration.operator or "Equal", toleration.value, toleration.effect


def admits(node: Node, shape: PodShape) -> bool:
    """True if this node admits pods of this shape, room apart: by readiness, cordon, taints, selector, affinity."""
    if not _is_ready(node):
        return False
    taints = list(node.spec.taints or ())
    if node.spec.unschedulable and not any(t.key == labels.TAINT_UNSCHEDULABLE for t in taints):
        taints.append(Taint(key=labels.TAINT_UNSCHEDULABLE, effect="NoSchedule"))
    if any(t.effect in _BLOCKING_EFFECTS and not _tolerated(t, shape.tolerations) for t in taints):
        return False
    have = node.metadata.labels or {}
    if any(have.get(key) != value for key, value in shape.selector):
        return False
    if shape.terms is None:
        return True
    fields = {"metadata.name": node.metadata.name}
    return any(
        (on_labels or on_fields)
        and all(_meets(have, r) for r in on_labels)
        and all(_meets(fields, r) for r in on_fields)
        for on_labels, on_fields in shape._looked_up or ()
    )


def preference(
    node: Node, tolerations: tuple[tuple[str, str, str, str], ...], wishes: Iterable[tuple[int, Term]]
) -> int:
    """Return how gladly a pod goes to a node, 0 for neither: by soft node affinity and taints that prefer no pods.

    wishes: weights and terms. One taint of effect PreferNoSchedule that is not tolerated outweighs all of them.
    """
    have, fields = node.metadata.labels or {}, {"metadata.name": node.metadata.name}
    glad = sum(
        weight
        for weight, (on_labels, on_fields) in wishes
        if (on_labels or on_fields)
        and all(_meets(have, r) for r in on_labels)
        and all(_meets(fields, r) for r in on_fields)
    )
    soft = [t for t in node.spec.taints or () if t.effect == SOFT_EFFECT]
    return glad - 10_000 * sum(not _tolerated(taint, tolerations) for taint in soft)


def soft_terms(pod: Pod) -> tuple[tuple[int, Term], ...]:
    """Return the soft node affinity of a pod: weights from 1 to 100 and terms, at most 16.

    A wish may be given up: terms of too many expressions or values are none.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = (affinity.preferred if affinity else None) or []
    found = tuple((max(0, min(each.weight, 100)), _term(each.preference)) for each in terms[:16])
    rules, values = _size(term for _, term in found)
    return found if rules <= MOST_RULES and values <= MOST_VALUES else ()


def _is_ready(node: Node) -> bool:
    """True unless the node's Ready condition says otherwise. Fake and new nodes have no such condition."""
    return all(c.status == "True" for c in node.status.conditions or () if c.type == "Ready")


def _tolerated(taint: Taint, tolerations: tuple[tuple[str, str, str, str], ...]) -> bool:
    for key, operator, value, effect in tolerations:
        if effect and effect != taint.effect:
            continue
        if key and key != taint.key:
            continue
        if not key and operator != "Exists":
            continue
        if operator == "Exists" or value == (taint.value or ""):
            return True
    return False


def _sets(requirements: tuple[Requirement, ...]) -> tuple[_LookedRequirement, ...]:
    """Return the requirements with their values as sets, where a walk through them would be made on every node."""
    return tuple(
        (key, operator, frozenset(values) if operator in ("In", "NotIn") else values)
        for key, operator, values in requirements
    )


def _meets(have: Mapping[str, str], requirement: _LookedRequirement) -> bool:
    key, operator, values = requirement
    value = have.get(key)
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(value, operator, values)
    return False


def _compares(value: str | None, operator: str, values: Collection[str]) -> bool:
    have, bound = _integer(value), _integer(next(iter(values)) if len(values) == 1 else None)
    if have is None or bound is None:
        return False
    return have > bound if operator == "Gt" else have < bound


@lru_cache(maxsize=4096)
def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def same_offer(one: Node, other: Node) -> bool:
    """True if two versions of a node differ in nothing that a decision on pods reads. Heartbeats are not read."""
    return (
        one.status.allocatable == other.status.allocatable
        and one.spec == other.spec
        and one.metadata.labels == other.metadata.labels
        and [c.status for c in one.status.conditions or () if c.type == "Ready"]
        == [c.status for c in other.status.conditions or () if c.type == "Ready"]
    )


def label_keys(shape: PodShape) -> Iterable[str]:
    """Give the keys of node labels that the shape's required affinity reads."""
    return (key for on_labels, _ in shape.terms or () for key, _, _ in on_labels)


def look(node: Node, keys: Sequence[str], by_name: bool) -> object:
    """Return all of a node that `admits` reads, given the label keys that matter: equal values are admitted alike."""
    have = node.metadata.labels or {}
    taints = tuple((t.key, t.value, t.effect) for t in node.spec.taints or ())
    ready = tuple(c.status for c in node.status.conditions or () if c.type == "Ready")
    name = node.metadata.name if by_name else None
    return node.spec.unschedulable, taints, ready, tuple([have.get(key) for key in keys]), name


def amount_of(what: str, amount: int) -> str:
    """Write an amount of a shape as a person does: 500m CPUs, 64Gi memory."""
    if what == "cpu":
        return f"{amount // 1000} cpu" if amount % 1000 == 0 else f"{amount}m cpu"
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        if amount >= size and amount % size == 0:
            return f"{amount // size}{unit} {what}"
    return f"{amount} {what}"
