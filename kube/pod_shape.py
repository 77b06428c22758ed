"""Quantities, and the shape of a pod: all that decides on which nodes it can run, and how many of it fit on a node.

A planner treats two pods of one shape as equal. The node and the owner of a pod are not part of its shape.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from turnout.kube import labels
from turnout.kube.errors import BadQuantity, TooComplex
from turnout.kube.objects import (
    Container,
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Taint,
    Toleration,
)

Requirement = tuple[str, str, tuple[str, ...]]  # key, operator, values
Term = tuple[tuple[Requirement, ...], tuple[Requirement, ...]]  # requirements on labels, requirements on fields
_LookupRequirement = tuple[str, str, Collection[str]]  # a Requirement with a set of values for In and NotIn
_LookupTerm = tuple[tuple[_LookupRequirement, ...], tuple[_LookupRequirement, ...]]

MAX_AMOUNT = 1 << 52  # 4 PiB: more than any node has; sums over a node's pods do not overflow 64 bits
MAX_ITEMS = 64  # terms and expressions of node affinity; also of a selector, tolerations, resources, host ports
MAX_VALUES = 1_024  # of all expressions together
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")  # as affinity compares them: 64 bits
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
SOFT_EFFECT = "PreferNoSchedule"

HostPort = tuple[str, int]  # protocol and number


@dataclass(frozen=True)
class PodShape:
    """The shape of a pod. If a pod requests only resources, the other fields have their defaults."""

    requests: tuple[tuple[str, int], ...]  # (resource, amount), sorted; milli-CPU or base units; "pods" is always 1
    selector: tuple[tuple[str, str], ...] = ()  # the nodeSelector, sorted
    terms: tuple[Term, ...] | None = None  # required node affinity; None if absent
    tolerations: tuple[tuple[str, str, str, str], ...] = ()  # key, operator, value, effect
    host_ports: tuple[HostPort, ...] = ()  # sorted

    @cached_property
    def _hash(self) -> int:
        """Return the hash of all fields."""
        return hash((self.requests, self.selector, self.terms, self.tolerations, self.host_ports))

    @cached_property
    def _lookup_terms(self) -> tuple[_LookupTerm, ...] | None:
        """Return the node affinity terms with values as sets, for fast checks; None if the pod has no terms."""
        terms = self.terms
        return (
            None
            if terms is None
            else tuple((_with_value_sets(on_labels), _with_value_sets(on_fields)) for on_labels, on_fields in terms)
        )

    def __hash__(self) -> int:
        """Return the hash. It is computed once, because shapes are looked up very often and their tuples are long."""
        return self._hash

    def gpus(self, resources: tuple[str, ...] = labels.GPU_RESOURCES) -> int:
        """Return the number of accelerators that one pod requests, the sum over `resources` (DL-20)."""
        return sum(amount for name, amount in self.requests if name in resources)


def shape_of(pod: Pod) -> PodShape:
    """Return the shape of a pod. Equal shapes are usually one object, from a cache.

    Raises BadQuantity for an unreadable request, TooComplex above the bounds. A pod that has a node needs no placement:
    if it is too complex, its shape has only its requests and its first MAX_ITEMS host ports.
    """
    spec = pod.spec
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    shape = PodShape(
        requests=pod_requests(pod),
        selector=tuple(sorted((spec.node_selector or {}).items())),
        terms=None if required is None else tuple(_term(t) for t in required.node_selector_terms),
        tolerations=tuple(sorted({_toleration(t) for t in spec.tolerations or ()})),
        host_ports=_host_ports(spec),
    )
    if (fault := _complexity_error(shape)) is None:
        return _intern(shape)
    if not spec.node_name:
        raise fault
    return _intern(PodShape(shape.requests, host_ports=shape.host_ports[:MAX_ITEMS]))


def _host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return the (protocol, port) pairs that a pod needs on its node, sorted.

    They are each hostPort, with hostNetwork also each containerPort, of containers and of sidecars (init containers
    that always restart), as in kube-scheduler since kubernetes#132040. hostIP is ignored: a port is taken on all
    addresses.
    """
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    ports = [port for container in (*spec.containers, *sidecars) for port in container.ports or ()]
    needed = {(port.protocol, port.host_port) for port in ports if port.host_port}
    if spec.host_network:
        needed |= {(port.protocol, port.container_port) for port in ports}
    return tuple(sorted(needed))


def _complexity_error(shape: PodShape) -> TooComplex | None:
    """Return an error about the first bound that a shape exceeds, without raising it; None if it exceeds none."""
    rules, values = _count_expressions(shape.terms or ())
    counts = (
        ("terms and expressions of node affinity", rules, MAX_ITEMS),
        ("values of node affinity", values, MAX_VALUES),
        ("labels in its nodeSelector", len(shape.selector), MAX_ITEMS),
        ("tolerations", len(shape.tolerations), MAX_ITEMS),
        ("resources", len(shape.requests), MAX_ITEMS),
        ("host ports", len(shape.host_ports), MAX_ITEMS),
    )
    return next((TooComplex(noun, count, max_count) for noun, count, max_count in counts if count > max_count), None)


def _count_expressions(terms: Iterable[Term]) -> tuple[int, int]:
    """Return (number of expressions, number of their values). A term without expressions counts as one expression."""
    expressions = values = 0
    for on_labels, on_fields in terms:
        expressions += max(1, len(on_labels) + len(on_fields))
        values += sum(len(each) for _, _, each in (*on_labels, *on_fields))
    return expressions, values


@lru_cache(maxsize=4096)
def _intern(shape: PodShape) -> PodShape:
    """Return one object for equal shapes: thousands of pods share few shapes, and identical objects compare quickly."""
    return shape


def pod_requests(pod: Pod) -> tuple[tuple[str, int], ...]:
    """Return the request of a pod as sorted (resource, amount), without zeros. Raises BadQuantity.

    The amounts have the unit of amount(), and are at most MAX_AMOUNT. For each resource: the larger of the sum over the
    containers and the peak of the init containers. Sidecars (init containers that always restart) count with the
    containers, and with the init containers that start after them. Requests at the level of the pod replace the result
    for the resources that they name (KEP-2837). The overhead is added. Each pod also requests 1 of the resource `pods`.
    """
    running: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(running, container_requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers or ():
        requests = container_requests(container)
        if container.restart_policy == "Always":
            _add(running, requests)
            _add(sidecars, requests)
            requests = dict(sidecars)
        else:
            _add(requests, sidecars)
        for name, amount in requests.items():
            peak[name] = max(peak.get(name, 0), amount)
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}
    if pod.spec.resources and (pod_level := _amounts(pod.spec.resources.requests)):
        total.update(pod_level)
    _add(total, _amounts(pod.spec.overhead))
    total["pods"] = 1
    return tuple(sorted((name, min(amount, MAX_AMOUNT)) for name, amount in total.items() if amount > 0))


def container_requests(container: Container) -> dict[str, int]:
    """Return a container's requests by resource; {} without any. A limit is the default of an absent request.

    Raises BadQuantity.
    """
    if container.resources is None:
        return {}
    return {**_amounts(container.resources.limits), **_amounts(container.resources.requests)}


def amount(resource: str, quantity: str | int | float) -> int:
    """Convert a quantity to milli-CPU for "cpu", else to base units (bytes, counts), rounded up.

    The result is 0 to MAX_AMOUNT: a negative quantity is 0, and a larger one is MAX_AMOUNT. Raises BadQuantity.
    """
    return max(0, min(milli(quantity) if resource == "cpu" else base_units(quantity), MAX_AMOUNT))


def _amounts(quantities: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Return quantities by resource as amounts. Raises BadQuantity."""
    return {name: amount(name, quantity) for name, quantity in (quantities or {}).items()}


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    """Add amounts to `total`, by resource."""
    for name, value in amounts.items():
        total[name] = total.get(name, 0) + value


def _term(term: NodeSelectorTerm) -> Term:
    """Return a term of node affinity as tuples."""
    return _requirements(term.match_expressions), _requirements(term.match_fields)


def _requirements(requirements: list[NodeSelectorRequirement] | None) -> tuple[Requirement, ...]:
    """Return requirements of node affinity as tuples (key, operator, values)."""
    return tuple((r.key, r.operator, tuple(r.values or ())) for r in requirements or ())


def _toleration(toleration: Toleration) -> tuple[str, str, str, str]:
    """Return a toleration as (key, operator, value, effect). The default operator is Equal."""
    return toleration.key, toleration.operator or "Equal", toleration.value, toleration.effect


def admits(node: Node, shape: PodShape) -> bool:
    """Return True if a node admits pods of a shape: it is not NotReady, and its cordon (unschedulable), taints, labels
    and fields allow the shape.

    Free room and host ports are not checked.
    """
    if not _is_ready(node):
        return False
    taints = _taints_with_cordon(node)
    if any(t.effect in _BLOCKING_EFFECTS and not _is_tolerated(t, shape.tolerations) for t in taints):
        return False
    node_labels = node.metadata.labels or {}
    if any(node_labels.get(key) != value for key, value in shape.selector):
        return False
    if shape.terms is None:
        return True
    return any(_matches_term(node, term) for term in shape._lookup_terms or ())


def _taints_with_cordon(node: Node) -> list[Taint]:
    """Return the taints of a node. A cordon counts as the taint that Kubernetes adds for it a little later."""
    taints = list(node.spec.taints or ())
    if node.spec.unschedulable and not any(taint.key == labels.TAINT_UNSCHEDULABLE for taint in taints):
        taints.append(Taint(key=labels.TAINT_UNSCHEDULABLE, effect="NoSchedule"))
    return taints


def _matches_term(node: Node, term: _LookupTerm) -> bool:
    """Return True if a node meets all requirements of a term. A term without requirements matches no node.

    term: (requirements on the node's labels, requirements on its fields). The only field is metadata.name.
    """
    on_labels, on_fields = term
    node_labels, fields = node.metadata.labels or {}, {"metadata.name": node.metadata.name}
    return (
        bool(on_labels or on_fields)
        and all(_is_met(node_labels, each) for each in on_labels)
        and all(_is_met(fields, each) for each in on_fields)
    )


def preference(
    node: Node, tolerations: tuple[tuple[str, str, str, str], ...], preferred_terms: Iterable[tuple[int, Term]]
) -> int:
    """Return a score of a node for a pod from preferred node affinity and PreferNoSchedule taints; higher is better.

    tolerations: (key, operator, value, effect). preferred_terms: (weight, term); the weights of the terms that match
    are added. Each PreferNoSchedule taint that is not tolerated subtracts 10,000, more than all weights. 0 if nothing
    applies, negative with such taints.
    """
    score = sum(weight for weight, term in preferred_terms if _matches_term(node, term))
    soft = [t for t in node.spec.taints or () if t.effect == SOFT_EFFECT]
    return score - 10_000 * sum(not _is_tolerated(taint, tolerations) for taint in soft)


def preferred_terms(pod: Pod) -> tuple[tuple[int, Term], ...]:
    """Return the preferred node affinity of a pod: the first 16 terms, as pairs (weight, term). Weights are 0 to 100.

    () without any. Preferences are optional: if they have more than MAX_ITEMS expressions or MAX_VALUES values, the
    result is () too.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = (affinity.preferred if affinity else None) or []
    preferences = tuple((max(0, min(each.weight, 100)), _term(each.preference)) for each in terms[:16])
    rules, values = _count_expressions(term for _, term in preferences)
    return preferences if rules <= MAX_ITEMS and values <= MAX_VALUES else ()


def _is_ready(node: Node) -> bool:
    """Return True if the node's Ready condition is True, or if it has no such condition, as new nodes have none."""
    return all(c.status == "True" for c in node.status.conditions or () if c.type == "Ready")


def _is_tolerated(taint: Taint, tolerations: tuple[tuple[str, str, str, str], ...]) -> bool:
    """Return True if a toleration matches the taint.

    An empty effect matches every effect; an empty key matches every key, but only with Exists. Every operator but
    Exists, also an unknown one, matches equal values only. tolerations: (key, operator, value, effect).
    """
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


def _with_value_sets(requirements: tuple[Requirement, ...]) -> tuple[_LookupRequirement, ...]:
    """Return the requirements with the values of In and NotIn as sets, which are faster to search on every node."""
    return tuple(
        (key, operator, frozenset(values) if operator in ("In", "NotIn") else values)
        for key, operator, values in requirements
    )


def _is_met(attributes: Mapping[str, str], requirement: _LookupRequirement) -> bool:
    """Return True if a node meets one requirement (key, operator, values) of a node selector.

    attributes: its labels, or its fields such as metadata.name. An absent key meets only NotIn and DoesNotExist. Gt and
    Lt need a label and one value that are integers. False for an unknown operator.
    """
    key, operator, values = requirement
    value = attributes.get(key)
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
            return _compare_numbers(value, operator, values)
    return False


def _compare_numbers(value: str | None, operator: str, values: Collection[str]) -> bool:
    """Return True if a label's number is greater (Gt) or less (Lt) than the only one of `values`.

    value: of the label, None without it. False if one of the two is no integer, or if there are several values.
    """
    number, bound = _integer(value), _integer(next(iter(values)) if len(values) == 1 else None)
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


@lru_cache(maxsize=4096)
def _integer(text: str | None) -> int | None:
    """Return the integer in a text of up to 19 digits, with or without a sign; None for any other text and for None."""
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def is_equal_for_placement(first: Node, second: Node) -> bool:
    """Return True if two versions of a node are equal in all fields that a placement reads, as after a heartbeat."""
    return (
        (first.status.allocatable or first.status.capacity) == (second.status.allocatable or second.status.capacity)
        and first.spec == second.spec
        and first.metadata.labels == second.metadata.labels
        and [c.status for c in first.status.conditions or () if c.type == "Ready"]
        == [c.status for c in second.status.conditions or () if c.type == "Ready"]
    )


def label_keys(shape: PodShape) -> Iterable[str]:
    """Return the keys of node labels that the shape's required affinity reads."""
    return (key for on_labels, _ in shape.terms or () for key, _, _ in on_labels)


def admission_view(node: Node, keys: Sequence[str], by_name: bool) -> object:
    """Return the part of a node that admits() reads, as a hashable value: nodes with equal views get the same result.

    keys: the label keys in the nodeSelector and the required node affinity of the shape. by_name: True if its affinity
    reads metadata.name.
    """
    node_labels = node.metadata.labels or {}
    taints = tuple((t.key, t.value, t.effect) for t in node.spec.taints or ())
    ready = tuple(c.status for c in node.status.conditions or () if c.type == "Ready")
    name = node.metadata.name if by_name else None
    return node.spec.unschedulable, taints, ready, tuple([node_labels.get(key) for key in keys]), name


def amount_text(resource: str, amount: int) -> str:
    """Return an amount of a resource as a text such as "500m cpu" or "64Gi memory".

    amount: in the unit of amount(): milli-CPU for "cpu", else base units.
    """
    if resource == "cpu":
        return f"{amount // 1000} cpu" if amount % 1000 == 0 else f"{amount}m cpu"
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        if amount >= size and amount % size == 0:
            return f"{amount // size}{unit} {resource}"
    return f"{amount} {resource}"


_MAX_QUANTITY = 2**63 - 1  # in base units, as in Kubernetes; a larger quantity counts as this
_MAX_TEXT_CHARS = 128  # characters of a quantity; the longest that the API server writes is far shorter
_MAX_EXPONENT = 256  # past it a text of _MAX_TEXT_CHARS digits is above the cap or below a nano in any case

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
# "1E" is exa and "1E3" a thousand: the exponent needs its digits, else the letter is a suffix.
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<int>[0-9]*)(?:\.(?P<frac>[0-9]*))?(?:[eE](?P<exp>[+-]?[0-9]+)|(?P<suffix>[KMGTPE]i|[numkMGTPE]?))"
)


@lru_cache(maxsize=8192, typed=True)
def milli(q: str | int | float) -> int:
    """Return a quantity in thousandths, rounded away from zero. Raises BadQuantity."""
    return _quantity_times(q, 1000)


@lru_cache(maxsize=8192, typed=True)
def base_units(q: str | int | float) -> int:
    """Return a quantity in base units (bytes, devices, pods), rounded away from zero. Raises BadQuantity."""
    return _quantity_times(q, 1)


def nano(q: str | int | float) -> int:
    """Return a quantity in thousand-millionths, the precision of Kubernetes, rounded away from zero.

    Raises BadQuantity.
    """
    return _quantity_times(q, 10**9)


def _quantity_times(quantity: str | int | float, factor: int) -> int:
    """Return a quantity times `factor`, rounded away from zero, and limited to +-_MAX_QUANTITY * factor.

    It is computed in integers, because floats are not exact. Raises BadQuantity if `quantity` is no quantity, also for
    a boolean.
    """
    text = quantity if isinstance(quantity, str) else repr(quantity)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT_CHARS else None
    if match is None or isinstance(quantity, bool):
        raise BadQuantity(quantity)
    digits, frac, suffix = match["int"] or "", match["frac"] or "", match["suffix"] or ""
    if not digits and not frac:
        raise BadQuantity(quantity)
    exponent = _exponent(match["exp"], suffix) - len(frac)
    amount = int(digits + frac) * _BINARY.get(suffix, 1) * factor
    size: int = amount * 10**exponent if exponent >= 0 else -(-amount // 10**-exponent)
    size = min(size, _MAX_QUANTITY * factor)
    return -size if match["sign"] == "-" else size


def _exponent(stated: str | None, suffix: str) -> int:
    """Return the power of ten of a quantity, within _MAX_EXPONENT. stated: after its e or E, None without."""
    exponent = int(stated) if stated else _DECIMAL.get(suffix, 0)
    return max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT))
